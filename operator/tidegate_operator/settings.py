"""Every setting of the operator: its unit, its default and when to change it.

A setting comes from the command line (`--pace.interval_s=…`) or from the environment
(`TIDEGATE_OPERATOR_PACE__INTERVAL_S=…`), in this order. Nothing else in the operator reads the
environment, but for what Kubernetes sets in a pod, and KUBECONFIG outside of one.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

_PREFIX = "TIDEGATE_OPERATOR_"
_DELIMITER = "__"

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
# Of labels, the form key=value alone; several are separated by commas, and all must hold.
_SELECTOR = r"^[^=!,\s()]+=[^=!,\s()]+(,[^=!,\s()]+=[^=!,\s()]+)*$"
LogLevel = Literal["debug", "info", "warning", "error"]


class InvalidSettings(Exception):
    """Settings that cannot be used; the message has a line for each, with what is allowed."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TableSettings(_Group):
    """Where the routing table is."""

    config_map: Name = "tidegate-routing"
    """The ConfigMap that holds it. The operator alone writes it; gateways and loaders follow it."""


class EngineSettings(_Group):
    """The engines, whose loaders tell what they have loaded."""

    selector: str = Field(default="app.kubernetes.io/component=engine", pattern=_SELECTOR)
    """Labels of their pods: key=value, several with commas between. It must name the release, too,
    where a namespace has two."""
    loader_port: Port = 8003
    """Port of the loader's GET /status."""


class GatewaySettings(_Group):
    """The gateways, which tell by which tables they route."""

    selector: str = Field(default="app.kubernetes.io/component=gateway", pattern=_SELECTOR)
    """Labels of their pods, in the same form."""
    admin_port: Port = 8082
    """Port of the gateway's GET /routing."""


class PaceSettings(_Group):
    """How eager and how patient the operator is."""

    interval_s: Seconds = 1.0
    """Seconds between two rounds in which everything is observed anew. A change of a ModelRollout
    begins one at once."""
    ask_timeout_s: Seconds = 2.0
    """Seconds that a loader or gateway has to answer before it counts as silent in this round."""
    answer_max_bytes: int = Field(default=8 * 2**20, ge=2**10, le=2**30)
    """Largest answer of a loader or gateway, in bytes; a routing table has at most 1 MiB."""
    write_timeout_s: Seconds = 5.0
    """Seconds that the API server has for one answer, to a read as to a write."""
    pause_first_s: Seconds = 1.0
    """Seconds of pause after a round that failed; doubled with each further one in a row."""
    pause_most_s: Seconds = 15.0
    """Longest pause after a round that failed, in seconds."""


class LeaseSettings(_Group):
    """The Lease of coordination.k8s.io that decides which of several operators acts."""

    name: Name = "tidegate-operator"
    """Its name; operators of one release must agree on it."""
    holder: str = Field(default="", max_length=253)
    """How this operator signs it. Empty: the host name, which in a pod is the pod's. Two operators
    that live at the same time must not sign alike; one that comes back under its own name goes on
    at once."""
    duration_s: int = Field(default=15, ge=1, le=3600)
    """Seconds that it must have lain unrenewed before another operator takes it: whole ones, since
    the API has no others."""
    renew_s: Seconds = 5.0
    """Seconds after which it is renewed."""


class LivenessSettings(_Group):
    """The listener for the kubelet's probes."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: Port = 8083
    """Port of GET /livez."""
    stuck_s: Seconds = 120.0
    """Seconds without the beginning of a round after which the operator counts as stuck; more than
    the longest round and the longest pause."""


class LogSettings(_Group):
    """The log, on standard error: one JSON object a line."""

    level: LogLevel = "info"
    """Least severe records that are written."""


class Settings(BaseSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
        cli_prog_name="python -m tidegate_operator",
        cli_kebab_case=False,
        cli_hide_none_type=True,
    )

    namespace: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")
    """The namespace of the release, its ModelRollouts and its pods. Empty: the operator's own."""
    table: TableSettings = TableSettings()
    engines: EngineSettings = EngineSettings()
    gateways: GatewaySettings = GatewaySettings()
    pace: PaceSettings = PaceSettings()
    lease: LeaseSettings = LeaseSettings()
    liveness: LivenessSettings = LivenessSettings()
    log: LogSettings = LogSettings()


def load(arguments: list[str]) -> Settings:
    """The settings of this process, from its `arguments` and its environment.

    Raises:
        InvalidSettings: naming each setting at fault and what is allowed.
        SystemExit: after `--help`, or an argument that does not exist.
    """
    unknown = list(_unknown_variables(os.environ))
    if unknown:
        raise InvalidSettings("\n".join(unknown))
    try:
        settings = CliApp.run(Settings, cli_args=arguments)
    except ValidationError as error:
        lines = (
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}, "
            f"got {fault['input']!r}"
            for fault in error.errors()
        )
        raise InvalidSettings("\n".join(lines)) from None
    except SettingsError as error:
        raise InvalidSettings(str(error)) from None
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    lease, write_s = settings.lease, settings.pace.write_timeout_s
    # A write begins only while the Lease is ours for as long as the write may take, and the Lease
    # may be as old as it gets between two renewals.
    if lease.renew_s + write_s >= lease.duration_s:
        raise InvalidSettings(
            f"lease.duration_s: expected more than lease.renew_s and pace.write_timeout_s "
            f"together, which are {lease.renew_s + write_s:g}, got {lease.duration_s}"
        )


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable that was surely meant as a setting and is none.

    Only names with the nested delimiter are judged: Kubernetes adds variables such as
    TIDEGATE_OPERATOR_PORT_8083_TCP to every pod beside a Service named tidegate-operator.
    """
    known = {name.upper().replace(".", _DELIMITER) for name in _names(Settings)}
    for variable in sorted(environment):
        name = variable.upper().removeprefix(_PREFIX)
        if name != variable.upper() and _DELIMITER in name and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {_PREFIX}{close[0]}?" if close else ""
            yield f"{variable}: no such setting{hint}"


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Group):
            yield from _names(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
