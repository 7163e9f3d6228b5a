"""Ports: taken at once, or refused with the setting that names them."""

import socket

import pytest

from tidegate_process.listening import CannotListen, bind, in_brackets


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_socket_listens_on_its_address(host: str) -> None:
    with bind("http", host, 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((host, port), timeout=20).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_taken_port_is_refused_with_its_setting(host: str) -> None:
    with bind("http", host, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as refused:
            bind("admin", host, port)
    message = str(refused.value)
    assert message.startswith(
        f"admin.port: cannot listen on {host} port {port}: Address already in use"
    )
    assert message.endswith("; stop what listens there or set admin.port")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CannotListen, match=r"^http\.port: cannot listen on 192\.0\.2\.1 port 1: "):
        bind("http", "192.0.2.1", 1)


def test_only_ipv6_stands_in_brackets() -> None:
    assert [in_brackets(host) for host in ("::1", "127.0.0.1", "a.b")] == [
        *("[::1]", "127.0.0.1", "a.b"),
    ]
