"""Every setting of the loader: its unit, its default and when to change it.

A setting comes from the command line (`--triton.address=…`) or from the environment
(`TIDEGATE_LOADER_TRITON__ADDRESS=…`), in this order. Nothing else in the loader reads the
environment, but for KUBERNETES_SERVICE_HOST and _PORT, which are Kubernetes' to set.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

_PREFIX = "TIDEGATE_LOADER_"
_DELIMITER = "__"

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s/,:\[\]]+):\d{1,5}$")]
LogLevel = Literal["debug", "info", "warning", "error"]


class InvalidSettings(Exception):
    """Settings that cannot be used; the message has a line for each, with what is allowed."""


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RepositorySettings(_Group):
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


class TableSettings(_Group):
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


class TritonSettings(_Group):
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


class ProofSettings(_Group):
    """Golden requests."""

    interval_s: Seconds = 3.0
    """Seconds between two proofs of a version that gets requests."""
    timeout_s: Seconds = 10.0
    """Seconds for the answer. One that takes longer proves nothing, and is no failure."""
    failures: int = Field(default=2, ge=1, le=100)
    """Wrong answers in a row after which a version is not proven."""


class HttpSettings(_Group):
    """The listener for gateways, the operator and Kubernetes."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: Port = 8003
    """Port of /status, /readyz and /livez; 0 takes a free one."""


class LogSettings(_Group):
    """The log, on standard error: one JSON object a line."""

    level: LogLevel = "info"
    """Least severe records that are written."""


class Settings(BaseSettings):
    """The loader's settings."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
        cli_prog_name="python -m tidegate_engine.loader",
        cli_kebab_case=False,
        cli_hide_none_type=True,
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


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable that was surely meant as a setting and is none."""
    known = {name.upper().replace(".", _DELIMITER) for name in _names(Settings)}
    for variable in sorted(environment):
        name = variable.upper().removeprefix(_PREFIX)
        if name != variable.upper() and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {_PREFIX}{close[0]}?" if close else ""
            yield f"{variable}: no such setting{hint}"


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Group):
            yield from _names(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
