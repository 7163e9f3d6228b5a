"""Every setting of the loader: its unit, its default and when to change it.

A setting comes from the command line (`--triton.address=…`) or from the environment
(`TIDEGATE_LOADER_TRITON__ADDRESS=…`), in this order. Nothing else in the loader reads the
environment, but for KUBERNETES_SERVICE_HOST and _PORT, which are Kubernetes' to set.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from tidegate_process import settings as process
from tidegate_process.settings import (
    Group,
    InvalidSettings,
    LogSettings,
    Port,
    ProcessSettings,
    Seconds,
)

Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s/,:\[\]]+):\d{1,5}$")]


class RepositorySettings(Group):
    """Where versions come from, and where Triton finds them."""

    path: Path = Path("/repository")
    """Folder of the model repository that versions come from."""
    local: Path = Path("/models")
    """Folder that Triton loads from; only the loader writes to it."""
    fetch: Literal["copy", "link"] = "copy"
    """copy: versions are copied, so that nothing that happens to the repository later matters.
    link: Triton reads them where they are, under the same path; for versions that are too large to
    be copied, in a repository that never changes a version."""
    retry_s: Seconds = 10.0
    """Seconds until the stable version is tried again when it cannot be fetched or loaded."""


class TableSettings(Group):
    """The routing table, which says what is to be loaded."""

    config_map: str = ""
    """Name of the ConfigMap with the table; followed through the API server."""
    namespace: str = ""
    """Its namespace; empty: the loader's own."""
    file: Path | None = None
    """File with the table, in place of a ConfigMap."""
    file_interval_s: Seconds = 1.0
    """Seconds between two looks at the file."""
    folder: Path = Path("/table")
    """Folder for the copy of the table that a restart finds; it must outlive the container."""
    silent_s: Seconds = 5.0
    """Seconds that the API server has for its first answer; then a starting loader goes by its
    copy."""


class TritonSettings(Group):
    """The Triton that this loader loads into."""

    address: Address = "127.0.0.1:8000"
    """host:port of its HTTP API."""
    metrics: Address = "127.0.0.1:8002"
    """host:port of its metrics, which tell the memory of the GPUs, and by a connection that is kept
    whether it runs."""
    key: SecretStr = SecretStr("")
    """Key of its repository API; empty: that is not restricted."""
    load_timeout_s: Seconds = 600.0
    """Seconds for which the answer to a load is awaited. One that takes longer goes on; how it ends
    is seen by asking."""
    ask_timeout_s: Seconds = 5.0
    """Seconds for any other answer, but for a golden request."""
    poll_s: Seconds = 0.5
    """Seconds between two questions to Triton what it has, and how often it was asked."""
    connect_pause_s: Seconds = 0.1
    """Seconds between two tries to connect while Triton does not run."""
    crashes: int = Field(default=2, ge=1, le=100)
    """Ends of Triton while a candidate is loaded and first proven, after which the candidate has
    failed. The stable version never has."""


class ProofSettings(Group):
    """Golden requests."""

    interval_s: Seconds = 3.0
    """Seconds between two proofs of a version that gets requests."""
    timeout_s: Seconds = 10.0
    """Seconds for the answer. One that takes longer proves nothing, and is no failure."""
    failures: int = Field(default=2, ge=1, le=100)
    """Wrong answers in a row after which a version is not proven."""
    silent_s: Seconds = 30.0
    """Seconds without a good answer of a candidate that gets requests, after which it is not
    proven, if the stable version has answered all its own golden requests on the same engine in
    that time. More than `interval_s` and `timeout_s` together."""


class HttpSettings(Group):
    """The listener for gateways, the operator and Kubernetes."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: Port = 8003
    """Port of /status, /readyz and /livez; 0 takes a free one."""


class Settings(ProcessSettings):
    """The loader's settings."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_LOADER_", cli_prog_name="python -m tidegate_engine.loader"
    )

    name: str = Field(default="", max_length=253)
    """The engine's, as the routing table may name it: its pod's. Empty: the host name, which in a
    pod of a StatefulSet is that."""
    repository: RepositorySettings = RepositorySettings()
    table: TableSettings = TableSettings()
    triton: TritonSettings = TritonSettings()
    proof: ProofSettings = ProofSettings()
    http: HttpSettings = HttpSettings()
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
    table, repository = settings.table, settings.repository
    if bool(table.config_map) == (table.file is not None):
        raise InvalidSettings(
            "table: expected config_map or file, got "
            + ("both" if table.config_map else "none of them")
        )
    folders = {"repository.path": repository.path, "repository.local": repository.local}
    if table.config_map:
        folders["table.folder"] = table.folder
    for name, folder in folders.items():
        if not folder.is_dir():
            raise InvalidSettings(f"{name}: expected a folder that exists, got {str(folder)!r}")
