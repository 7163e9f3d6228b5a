"""Every setting of the gateway: its unit, its default and when to change it.

A setting comes from the command line (`--engine.address=…`) or from the environment
(`TIDEGATE_ENGINE__ADDRESS=…`), in this order. Nothing else in the gateway reads the environment.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

_PREFIX = "TIDEGATE_"
_DELIMITER = "__"

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Bytes = Annotated[int, Field(ge=1, le=2**30)]


class InvalidSettings(Exception):
    """Settings that cannot be used; the message has a line for each, with what is allowed."""


EngineProtocol = Literal["kserve-v2", "inference-service"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class HttpSettings(_Group):
    """The HTTP listener for clients."""

    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: Port = 8080
    """Port of POST /predict and of KServe v2 over HTTP; 0 takes a free one."""
    max_body_bytes: Bytes = 64 * 2**20
    """Largest request body, in bytes. Raise it for tensors over 64 MiB. A request in flight may
    hold this much memory, and ten times as much while JSON of that size is parsed."""
    keepalive_s: Seconds = 75.0
    """Seconds for which a connection without requests is kept; longer than load balancers in front
    keep theirs, which is often 60, so that it is they who close."""


class GrpcSettings(_Group):
    """The gRPC listener for clients."""

    host: str = "0.0.0.0"  # noqa: S104
    """Address to listen on; 127.0.0.1 keeps it to this machine."""
    port: Port = 8081
    """Port of KServe v2 and of inference.InferenceService over gRPC; 0 takes a free one."""
    max_message_bytes: Bytes = 64 * 2**20
    """Largest request message, in bytes."""
    max_connection_age_s: float = Field(default=3.0, ge=0, le=86400)
    """Seconds after which a client is told to connect anew (GOAWAY), give or take a tenth; calls on
    the old connection finish. It spreads clients over new gateways, and while it is well below
    drain.delay_s no call is lost when a gateway leaves. 0 keeps connections for ever. A client that
    sends messages over 256 KiB needs the channel option grpc.per_rpc_retry_buffer_size above their
    size, or now and then one that meets the GOAWAY fails as UNAVAILABLE."""


class AdminSettings(_Group):
    """The listener for Kubernetes and Prometheus, kept apart from clients."""

    host: str = "0.0.0.0"  # noqa: S104
    """Address to listen on."""
    port: Port = 8082
    """Port of /livez, /readyz and /metrics; 0 takes a free one."""


class EngineSettings(_Group):
    """The engine that requests are sent to."""

    address: str = Field(default="127.0.0.1:8001", pattern=r"^[^\s/]+:\d{1,5}$")
    """host:port of the engine's gRPC service. A name with several addresses, such as a headless
    Service, means several engines; calls go to them in turn."""
    protocol: EngineProtocol = "kserve-v2"
    """kserve-v2 for Triton; inference-service for a server of proto/inference.proto, which needs
    engine.model_configs as well, since that protocol cannot describe its models."""
    model_configs: Path | None = None
    """Folder with <model>/config.pbtxt (and label files) for the protocol inference-service; the
    same form as a Triton model repository."""
    max_message_bytes: int = Field(default=2**30, ge=1, le=2**31 - 1)
    """Largest message to and from the engine, in bytes."""
    keepalive_s: Seconds = 310.0
    """Seconds of silence before the connection is tested. A server closes connections that are
    tested more often than it allows, by default each 300 s; set 10 where the engine allows it."""
    keepalive_timeout_s: Seconds = 20.0
    """Seconds that the engine has to answer such a test before the connection counts as dead."""
    connect_timeout_s: Seconds = 5.0
    """Seconds that one try to connect to the engine may take."""
    reconnect_max_s: Seconds = 1.0
    """Longest pause, in seconds, between two tries to reach an engine that is away."""
    description_ttl_s: Seconds = 30.0
    """Seconds for which a model's inputs and outputs are remembered; its labels are for as long as
    these do not change."""
    description_timeout_s: Seconds = 5.0
    """Seconds that the engine has to describe a model."""


class DeadlineSettings(_Group):
    """How long a request may take when its client does not say, and at most."""

    predict_s: Seconds = 3.0
    """Seconds for POST /predict and POST /predict/v2."""
    v2_s: Seconds = 30.0
    """Seconds for KServe v2 and inference.InferenceService."""
    max_s: Seconds = 300.0
    """Most seconds that any request gets, whatever its client asks for."""


class ImageSettings(_Group):
    """Decoding of uploaded images."""

    threads: int = Field(default=2, ge=1, le=64)
    """Images decoded at the same time; more than the cores of the pod does not help."""
    max_waiting: int = Field(default=32, ge=0, le=10_000)
    """Images that may wait for a thread; the next one is refused at once (429)."""
    max_upload_bytes: Bytes = 32 * 2**20
    """Largest uploaded file, in bytes."""
    max_pixels: int = Field(default=50_000_000, ge=1, le=10**9)
    """Most pixels (width x height) of an uploaded image; decoding takes 4 bytes of memory for each
    pixel, 8 where the picture is turned, 12 where it is transparent."""


class DrainSettings(_Group):
    """How the gateway leaves after SIGTERM."""

    delay_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds for which it still takes requests while it says that it is not ready, so that load
    balancers notice."""
    grace_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds that requests in flight then have to finish."""


class AnswerSettings(_Group):
    """What answers tell of the way they took, for those who look for a fault."""

    gateway_name: str = Field(default="", pattern=r"^[\x21-\x7e]*$", max_length=253)
    """Told with every answer as tidegate-gateway: in a pod its own name. Empty: not told, so that
    clients learn nothing of the inside."""


class LogSettings(_Group):
    """The log, on standard error: one JSON object a line."""

    level: LogLevel = "info"
    """Least severe records that are written."""


class Settings(BaseSettings):
    """The gateway's settings."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter=_DELIMITER,
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
        cli_prog_name="python -m tidegate_gateway",
        cli_kebab_case=False,
        cli_hide_none_type=True,
    )

    default_model: str = Field(default="image_classifier", min_length=1)
    """Model of POST /predict and POST /predict/v2 when the request names none."""
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    admin: AdminSettings = AdminSettings()
    engine: EngineSettings = EngineSettings()
    deadline: DeadlineSettings = DeadlineSettings()
    images: ImageSettings = ImageSettings()
    drain: DrainSettings = DrainSettings()
    answers: AnswerSettings = AnswerSettings()
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
    engine = settings.engine
    if engine.protocol == "inference-service" and engine.model_configs is None:
        raise InvalidSettings(
            "engine.model_configs: expected a folder with <model>/config.pbtxt, since "
            "engine.protocol is inference-service, got none"
        )
    if engine.model_configs is not None and not engine.model_configs.is_dir():
        raise InvalidSettings(
            "engine.model_configs: expected a folder that exists, "
            f"got {str(engine.model_configs)!r}"
        )


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A line for each variable that was surely meant as a setting and is none.

    Only names with the nested delimiter are judged: Kubernetes adds variables such as
    TIDEGATE_PORT_8080_TCP to every pod beside a Service named tidegate.
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
