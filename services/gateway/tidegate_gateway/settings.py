"""Every setting of the gateway: its unit, its default and when to change it.

A setting comes from the command line (`--engine.address=…`) or from the environment
(`TIDEGATE_ENGINE__ADDRESS=…`), in this order. Nothing else in the gateway reads the environment,
but for KUBERNETES_SERVICE_HOST and _PORT, which are Kubernetes' to set.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
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

Bytes = Annotated[int, Field(ge=1, le=2**30)]

# host:port, several with commas between; an IPv6 address stands in brackets.
_ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[^\s/,:\[\]]+):\d{1,5}"
_ADDRESSES = rf"^{_ADDRESS}(,{_ADDRESS})*$"

EngineProtocol = Literal["kserve-v2", "inference-service"]
GrpcCompression = Literal["none", "deflate", "gzip"]
DiscoverySource = Literal["address", "kubernetes"]


class HttpSettings(Group):
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
    max_header_bytes: int = Field(default=64 * 2**10, ge=1024, le=2**20)
    """Largest request line and headers together, in bytes; larger ones are answered with 431."""
    header_timeout_s: Seconds = 10.0
    """Seconds that a client has to send the headers of a request, from its first byte, or from the
    connection's beginning. One that is slower is cut off."""
    body_silent_s: Seconds = 10.0
    """Seconds without a byte of a body after which it is given up; all of it must be here within
    the deadline."""
    send_silent_s: Seconds = 30.0
    """Seconds for which a client may take nothing of its answer before it is cut off."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Most connections at a time; one more is answered with 503 and closed. Keep it below the
    process's limit of open files."""
    compression_level: int = Field(default=1, ge=0, le=9)
    """How hard answers are compressed for clients that ask for it (Accept-Encoding: gzip or
    deflate): 1 is the fastest. 0: not at all."""
    compression_least_bytes: int = Field(default=1024, ge=0, le=2**30)
    """Smallest answer, in bytes, that is compressed."""


class GrpcSettings(Group):
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
    max_metadata_bytes: int = Field(default=64 * 2**10, ge=1024, le=2**20)
    """Largest metadata of a call, in bytes."""
    max_concurrent_streams: int = Field(default=1000, ge=1, le=100_000)
    """Most calls at a time on one connection; more of them wait in the client."""
    compression: GrpcCompression = "none"
    """How answers are compressed: none, deflate or gzip. Requests may come compressed whatever it
    is."""


class AdminSettings(Group):
    """The listener for Kubernetes and Prometheus, kept apart from clients."""

    host: str = "0.0.0.0"  # noqa: S104
    """Address to listen on."""
    port: Port = 8082
    """Port of /livez, /readyz, /metrics, /routing and /endpoints; 0 takes a free one."""


class EngineSettings(Group):
    """The engines that requests are sent to."""

    address: str = Field(default="127.0.0.1:8001", pattern=_ADDRESSES)
    """host:port of the engine's gRPC service; several are separated by commas. Behind a name with
    several addresses, such as a headless Service, each address is an engine."""
    protocol: EngineProtocol = "kserve-v2"
    """kserve-v2 for Triton; inference-service for a server of proto/inference.proto, which needs
    engine.model_configs as well, since that protocol cannot describe its models."""
    model_configs: Path | None = None
    """Folder with <model>/config.pbtxt (and label files) for the protocol inference-service; the
    same form as a Triton model repository."""
    max_message_bytes: int = Field(default=2**30, ge=1, le=2**31 - 1)
    """Largest message to and from the engine, in bytes."""
    keepalive_s: Seconds = 310.0
    """Seconds of silence before a connection is tested. A server closes connections that are
    tested more often than it allows, by default each 300 s; set 10 where the engine allows it."""
    keepalive_timeout_s: Seconds = 5.0
    """Seconds that the engine has to answer such a test, and its machine to acknowledge what it is
    sent, before the connection counts as dead: so long may the death of a node go unnoticed."""
    connect_timeout_s: Seconds = 5.0
    """Seconds that one try to connect to the engine may take."""
    reconnect_max_s: Seconds = 1.0
    """Longest pause, in seconds, between two tries to reach an engine that is away."""
    first_connection_s: Seconds = 1.0
    """Seconds that a request waits while no engine is connected but one may be about to be: it has
    just been found, or has closed its connection in order. Where all connections have failed, it is
    refused at once."""
    cancel_after_s: float = Field(default=0.1, ge=0, le=100)
    """Seconds that a call may take to end by itself once nobody wants its answer any more; then it
    is cancelled in the engine. A Triton before 25.04 can crash when a call is cancelled in the very
    moment in which it ends; with newer ones it may be 0."""
    loader_port: Port = 0
    """Port of the engines' loaders, whose GET /status tells which versions they have proven. 0:
    they have none, and are asked themselves which versions they serve."""
    description_ttl_s: Seconds = 30.0
    """Seconds for which a model's inputs and outputs are remembered; its labels are for as long as
    these do not change."""
    description_timeout_s: Seconds = 5.0
    """Seconds that the engine has to describe a model."""


class DiscoverySettings(Group):
    """How the gateway learns which engines there are."""

    source: DiscoverySource = "address"
    """address: engine.address, whose names are looked up again and again. kubernetes: the
    EndpointSlices of a Service, which tell of changes at once, and of zones; the gateway's service
    account must be allowed to get, list and watch them."""
    interval_s: Annotated[float, Field(ge=0.5, le=3600)] = 2.0
    """Seconds between two lookups of a name, give or take a fifth."""
    lookup_timeout_s: Seconds = 5.0
    """Seconds that a lookup may take before it counts as an outage of the DNS, in which the last
    known engines are kept."""
    empty_grace_s: float = Field(default=30.0, ge=0, le=86400)
    """Seconds for which the last known engines are kept when their source says that there are none:
    more often it is the source that is wrong."""
    service: str = Field(default="", pattern=r"^([a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$")
    """For kubernetes: the Service whose endpoints are the engines."""
    namespace: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")
    """For kubernetes: its namespace; empty: the gateway's own."""
    port_name: str = Field(default="grpc", min_length=1, max_length=15)
    """For kubernetes: the name of the engines' gRPC port in the Service."""


class RoutingSettings(Group):
    """Which versions of a model answer, by the routing table."""

    table: Path | None = None
    """JSON file with the routing table, see docs/routing.md. Without it the engines choose the
    version of a request that names none."""
    interval_s: Seconds = 1.0
    """Seconds between two looks at the file."""
    config_map: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")
    """On Kubernetes, in place of routing.table: the ConfigMap with the routing table, in the
    gateway's own namespace, which its service account must be allowed to get, list and watch. The
    gateway is not ready before it has a table."""
    folder: Path | None = None
    """For routing.config_map: the folder of a volume that outlives the container. The applied table
    is kept there for a restart while the API server is away."""
    silent_s: Seconds = 5.0
    """For routing.config_map: seconds that the API server has at the start before the kept table is
    used."""


class BalancingSettings(Group):
    """Which engine gets a request."""

    zone: str = Field(default="", max_length=63)
    """The gateway's own zone: engines in it come first. Empty: zones do not matter."""
    spill_over: float = Field(default=2.0, ge=1, le=1000)
    """How many times as loaded as another zone's engine one of the own zone may be and still be
    chosen."""
    subset: int = Field(default=100, ge=0, le=100_000)
    """Most engines that one gateway connects to; with more, each gateway takes its own part of
    them. 0: all."""
    slow_start_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds over which a new or returned engine's share of the traffic grows to the full."""
    max_sequences: int = Field(default=10_000, ge=1, le=10_000_000)
    """Most sequences whose engine is remembered; beyond it the longest idle one is forgotten."""
    sequence_idle_s: Seconds = 600.0
    """Seconds after which an idle sequence is forgotten."""


class HealthSettings(Group):
    """When an engine is taken out of balancing (ejected), and when it comes back."""

    consecutive_failures: int = Field(default=5, ge=1, le=1000)
    """Failures in a row of a version on an engine that eject it there."""
    error_ratio: float = Field(default=0.5, gt=0, le=1)
    """Share of failures within health.window_s that ejects as well."""
    error_samples: int = Field(default=20, ge=1, le=100_000)
    """Answers that must have come in the window before health.error_ratio counts."""
    window_s: Seconds = 10.0
    """Seconds over which failures are counted."""
    slow_factor: float = Field(default=5.0, gt=1, le=1000)
    """How many times as slow as the others an engine must be to be ejected."""
    slow_least_s: Seconds = 0.25
    """Seconds of latency below which no engine counts as slow."""
    slow_samples: int = Field(default=10, ge=1, le=100_000)
    """Answers that an engine must have given before it can count as slow."""
    most_ejected: float = Field(default=0.5, ge=0, le=1)
    """Most of the engines, as a share, that may be out for failures or slowness: when all fail, the
    fault is elsewhere. Those without a connection, or that fail a probe, are out in any case."""
    ejection_s: Seconds = 5.0
    """Seconds of the first ejection; each further one lasts twice as long."""
    ejection_most_s: Seconds = 60.0
    """Longest ejection, in seconds."""
    refresh_s: Seconds = 5.0
    """Seconds between two questions to an engine, or its loader, which versions it serves; 1 s at
    most while a loader has one still to prove."""
    ask_timeout_s: Seconds = 5.0
    """Seconds that it has to answer; one that does not is not thereby unwell."""
    probe_interval_s: Seconds = 5.0
    """Seconds without a good answer after which a version on an engine is probed with the model's
    golden request."""
    probe_timeout_s: Seconds = 5.0
    """Seconds that the golden request may take."""


class AttemptSettings(Group):
    """Further attempts of a request, at other engines than the first."""

    most: int = Field(default=3, ge=1, le=10)
    """Most attempts of a request, the first included."""
    wait_least_s: Seconds = 0.2
    """Least seconds without an answer after which another attempt begins while the first goes on.
    The wait is at most half of the time that is left."""
    wait_p99_factor: float = Field(default=4.0, ge=1, le=1000)
    """The same as a multiple of the model's 99th percentile of latency; the longer counts."""
    hedge: bool = False
    """Begin another attempt at the model's 95th percentile already: the slowest answers come
    sooner, for up to attempts.budget_ratio more work."""
    budget_ratio: float = Field(default=0.2, ge=0, le=1)
    """Further attempts as a share of requests. It keeps an overload from feeding itself."""
    budget_burst: int = Field(default=20, ge=0, le=100_000)
    """Further attempts that are allowed at once whatever the share; more where an engine that fails
    had more requests in flight."""
    backoff_s: Seconds = 0.05
    """Seconds before a request that failed goes to the same engine again, where there is no other;
    doubled each time."""


class DeadlineSettings(Group):
    """How long a request may take when its client does not say, and at most."""

    predict_s: Seconds = 3.0
    """Seconds for POST /predict and POST /predict/v2."""
    v2_s: Seconds = 30.0
    """Seconds for KServe v2 and inference.InferenceService."""
    max_s: Seconds = 300.0
    """Most seconds that any request gets, whatever its client asks for."""


class AdmissionSettings(Group):
    """How much is taken in at once; what is beyond it is refused at once (429)."""

    max_in_flight: int = Field(default=256, ge=1, le=100_000)
    """Requests of one model that are worked on at a time."""
    max_waiting: int = Field(default=256, ge=0, le=100_000)
    """Requests of one model that may wait for their turn. One that would have to wait for longer
    than its deadline, as the model's answers come just then, is refused at once as well."""
    max_total: int = Field(default=2048, ge=1, le=1_000_000)
    """Requests of all models, worked on or waiting."""
    max_bytes: int = Field(default=2**30, ge=2**20, le=2**40)
    """Bytes of request bodies that are held at a time."""


class LimitSettings(Group):
    """How much one request may hold, beside http.max_body_bytes and grpc.max_message_bytes."""

    max_tensors: int = Field(default=256, ge=1, le=100_000)
    """Most inputs, and most outputs asked for."""
    max_elements: int = Field(default=2**26, ge=1, le=2**40)
    """Most elements of all inputs together."""
    max_json_values: int = Field(default=10_000_000, ge=1, le=2**30)
    """Most values of a JSON body, by its commas; each takes some 32 bytes of memory. Send larger
    tensors as binary ones."""


class StreamSettings(Group):
    """Requests with any number of answers: ModelStreamInfer and generate_stream."""

    max_s: float = Field(default=3600.0, gt=0, le=7 * 86400)
    """Most seconds that all the answers of one request may take, and the default."""
    silent_s: Seconds = 60.0
    """Seconds without an answer after which a request is given up."""
    max_after_roll_s: float = Field(default=300.0, ge=0, le=86400)
    """Seconds that a request may go on after its version has got no more traffic: a version is only
    unloaded when all have ended."""
    max_in_flight: int = Field(default=16, ge=1, le=10_000)
    """Requests of one ModelStreamInfer that are worked on at a time; the next one is read when one
    of them has ended."""


class ImageSettings(Group):
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


class DrainSettings(Group):
    """How the gateway leaves after SIGTERM."""

    delay_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds for which it still takes requests while it says that it is not ready, so that load
    balancers notice."""
    grace_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds that requests in flight then have to finish."""
    stream_notice_s: float = Field(default=2.0, ge=0, le=3600)
    """Seconds before the end of drain.grace_s at which what still streams is ended, with an error
    in the stream that says why."""


class AnswerSettings(Group):
    """What answers tell of the way they took, for those who look for a fault."""

    gateway_name: str = Field(default="", pattern=r"^[\x21-\x7e]*$", max_length=253)
    """Told with every answer as tidegate-gateway: in a pod its own name. Empty: not told, so that
    clients learn nothing of the inside."""
    engine_names: bool = False
    """Whether answers tell the engines that a request was tried on, in order: tidegate-engine."""


class Settings(ProcessSettings):
    """The gateway's settings."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_prog_name="python -m tidegate_gateway"
    )

    default_model: str = Field(default="image_classifier", min_length=1)
    """Model of POST /predict and POST /predict/v2 when the request names none."""
    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    admin: AdminSettings = AdminSettings()
    engine: EngineSettings = EngineSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    routing: RoutingSettings = RoutingSettings()
    balancing: BalancingSettings = BalancingSettings()
    health: HealthSettings = HealthSettings()
    attempts: AttemptSettings = AttemptSettings()
    deadline: DeadlineSettings = DeadlineSettings()
    admission: AdmissionSettings = AdmissionSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
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
    settings = process.load(Settings, arguments)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    engine, discovery, routing = settings.engine, settings.discovery, settings.routing
    if routing.table is not None and routing.config_map:
        raise InvalidSettings(
            "routing.table: expected none, since routing.config_map is given, "
            f"got {str(routing.table)!r}"
        )
    if routing.config_map and (routing.folder is None or not routing.folder.is_dir()):
        raise InvalidSettings(
            "routing.folder: expected a folder that exists, since routing.config_map is given, "
            f"got {'none' if routing.folder is None else repr(str(routing.folder))}"
        )
    if engine.protocol == "inference-service" and engine.model_configs is None:
        raise InvalidSettings(
            "engine.model_configs: expected a folder with <model>/config.pbtxt, since "
            "engine.protocol is inference-service, got none"
        )
    if discovery.source == "kubernetes" and not discovery.service:
        raise InvalidSettings(
            "discovery.service: expected the name of a Service, since discovery.source is "
            "kubernetes, got none"
        )
    if discovery.source == "address" and (discovery.service or discovery.namespace):
        raise InvalidSettings(
            "discovery.source: expected kubernetes, since discovery.service or "
            "discovery.namespace is given, got address"
        )
    if engine.model_configs is not None and not engine.model_configs.is_dir():
        raise InvalidSettings(
            "engine.model_configs: expected a folder that exists, "
            f"got {str(engine.model_configs)!r}"
        )
