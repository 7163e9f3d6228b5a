"""Every setting of the operator: its unit, its default and when to change it.

A setting comes from the command line (`--pace.interval_s=…`) or from the environment
(`TIDEGATE_OPERATOR_PACE__INTERVAL_S=…`), in this order. Nothing else in the operator reads the
environment, but for what Kubernetes sets in a pod, and KUBECONFIG outside of one.
"""

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from tidegate_process import settings as process
from tidegate_process.settings import (
    FixedPort,
    Group,
    InvalidSettings,
    LogSettings,
    ProcessSettings,
    Seconds,
)

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
# Of labels, the form key=value alone; several are separated by commas, and all must hold.
_SELECTOR = r"^[^=!,\s()]+=[^=!,\s()]+(,[^=!,\s()]+=[^=!,\s()]+)*$"


class TableSettings(Group):
    """Where the routing table is."""

    config_map: Name = "tidegate-routing"
    """The ConfigMap that holds it. The operator alone writes it; gateways and loaders follow it."""


class EngineSettings(Group):
    """The engines, whose loaders tell what they have loaded."""

    selector: str = Field(default="app.kubernetes.io/component=engine", pattern=_SELECTOR)
    """Labels of their pods: key=value, several with commas between. It must name the release, too,
    where a namespace has two."""
    loader_port: FixedPort = 8003
    """Port of the loader's GET /status."""


class GatewaySettings(Group):
    """The gateways, which tell by which tables they route."""

    selector: str = Field(default="app.kubernetes.io/component=gateway", pattern=_SELECTOR)
    """Labels of their pods, in the same form."""
    admin_port: FixedPort = 8082
    """Port of the gateway's GET /routing."""


class PaceSettings(Group):
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


class LeaseSettings(Group):
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


class LivenessSettings(Group):
    """The listener for the kubelet's probes."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: FixedPort = 8083
    """Port of GET /livez."""
    stuck_s: Seconds = 120.0
    """Seconds without the beginning of a round after which the operator counts as stuck; more than
    the longest round and the longest pause."""


class Settings(ProcessSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_OPERATOR_", cli_prog_name="python -m tidegate_operator"
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
    settings = process.load(Settings, arguments)
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
