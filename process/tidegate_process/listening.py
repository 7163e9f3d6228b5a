"""Ports to listen on: taken before anything is served, and told by their setting when taken."""

import socket

# Connections that are not accepted yet; as many as uvicorn's default, with which it listens anew.
_BACKLOG = 2048


class CannotListen(Exception):
    """A port cannot be had; the message names its setting."""

    def __init__(self, group: str, host: str, port: int, why: str) -> None:
        super().__init__(
            f"{group}.port: cannot listen on {host} port {port}: {why}; "
            f"stop what listens there or set {group}.port"
        )


def in_brackets(host: str) -> str:
    """A host as it stands before a port, as in a URL: an IPv6 address is put in brackets."""
    return f"[{host}]" if ":" in host else host


def bind(group: str, host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        group: the group of settings that `host` and `port` are from.
        host: an address of this machine, or a name of one.
        port: 0 takes a free one.

    Raises:
        CannotListen: it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(group, host, port, error.strerror or str(error)) from None
