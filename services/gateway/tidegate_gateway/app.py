"""Where the parts meet: the only module that knows all of them.

What is opened here lives exactly as long as the gateway: the connections to the engines, the watch
of which engines and which routing table there are, one pool of decoding threads. It encloses the
HTTP and the gRPC server alike, and so belongs to neither.
"""

import asyncio
import dataclasses
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import grpc.aio
from fastapi import FastAPI
from grpc_health.v1 import health
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from tidegate_gateway import __version__, rest, rest_generate, rest_v2, rpc
from tidegate_gateway.admin import Readiness, admin_app
from tidegate_gateway.admission import Admissions
from tidegate_gateway.asgi import AccessMiddleware, refuse_unrouted
from tidegate_gateway.attempts import Attempts
from tidegate_gateway.balancing import Pool, Rules
from tidegate_gateway.channels import ChannelLink, open_channel
from tidegate_gateway.discovery import Endpoint, Source, believed
from tidegate_gateway.dns import AddressSource
from tidegate_gateway.endpoint_slices import EndpointSliceSource
from tidegate_gateway.endpoints import Connection, Endpoints, Link
from tidegate_gateway.golden import EngineQuestions
from tidegate_gateway.images import ImageDecoder
from tidegate_gateway.inference import Inference, Upstream
from tidegate_gateway.inference_service import InferenceServiceEngine, ModelConfigs
from tidegate_gateway.loaders import Loaders
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import EngineSettings, RoutingSettings, Settings
from tidegate_gateway.streams import Streams
from tidegate_gateway.table import Routes
from tidegate_gateway.triton import Triton
from tidegate_table.api_server import in_cluster
from tidegate_table.document import Table
from tidegate_table.following import Store, follow_config_map, follow_file, read_file


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is open, but does not listen yet.

    Attributes:
        http: the ASGI application for clients.
        grpc: the gRPC server for clients, without a port.
        admin: the ASGI application for Kubernetes and Prometheus.
        readiness: what the admin port answers from; whoever runs the servers keeps it.
        streams: what still streams when the gateway leaves is ended by whoever runs the servers.
        watches: of the engines and the routing table; one that ends has failed, and the gateway
            must not stay as if it had not.
    """

    http: ASGIApp
    grpc: grpc.aio.Server
    admin: ASGIApp
    readiness: Readiness
    streams: Streams[Upstream]
    watches: list[asyncio.Task[None]]


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway with `settings`; everything it holds is released at the end.

    Raises:
        InvalidModelConfigs: engine.model_configs cannot be used.
        InvalidTable: routing.table cannot be used.
        InvalidAddresses: engine.address cannot be used.
        NotInCluster: discovery.source is kubernetes or routing.config_map is given, and this is no
            pod.
    """
    metrics, readiness = Metrics(), Readiness()
    loop = asyncio.get_running_loop()
    metrics.tasks.set_function(lambda: len(asyncio.all_tasks(loop)))
    chance = Random()  # noqa: S311 - nothing secret
    async with AsyncExitStack() as stack:
        decoder = _decoder(settings)
        stack.callback(decoder.close)
        routes = Routes(chance, needed=bool(settings.routing.config_map))
        table_watch = _table_watch(settings.routing, routes, readiness)
        loaders = _loaders(settings)
        if loaders is not None:
            stack.push_async_callback(loaders.close)
        endpoints = _endpoints(settings, routes, loaders, metrics, readiness)
        stack.push_async_callback(endpoints.close)
        attempts = Attempts(
            endpoints, settings.attempts, metrics, cancel_after_s=settings.engine.cancel_after_s
        )
        streams = Streams(attempts, routes, settings.stream)
        inference = Inference(
            routes,
            attempts,
            Admissions(settings.admission),
            streams,
            decoder,
            limits=settings.limits,
            description_ttl_s=settings.engine.description_ttl_s,
            description_timeout_s=settings.engine.description_timeout_s,
        )
        stack.push_async_callback(inference.close)
        snapshots = believed(_source(settings), empty_grace_s=settings.discovery.empty_grace_s)
        stack.push_async_callback(snapshots.aclose)
        watches = [endpoints.follow(snapshots)]
        if table_watch is not None:
            watches.append(table_watch())
        health_of = health.aio.HealthServicer()
        watches.append(_tell_health(readiness, health_of))
        yield Gateway(
            http=AccessMiddleware(
                http_app(inference, settings),
                metrics,
                lambda: readiness.draining,
                settings.answers,
            ),
            grpc=rpc.server(inference, streams, health_of, settings, metrics),
            admin=admin_app(readiness, metrics, routes.document, endpoints.document),
            readiness=readiness,
            streams=streams,
            watches=[await stack.enter_async_context(_going_on(watch)) for watch in watches],
        )


@asynccontextmanager
async def _going_on(watch: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(watch)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell_health(readiness: Readiness, health_of: health.aio.HealthServicer) -> None:
    """Keep the gRPC health service to what the admin port says."""
    while True:
        await rpc.tell_health(health_of, is_serving=not readiness.reason_against())
        await readiness.changed()


def _decoder(settings: Settings) -> ImageDecoder:
    return ImageDecoder(
        threads=settings.images.threads,
        max_waiting=settings.images.max_waiting,
        max_pixels=settings.images.max_pixels,
    )


def _table_watch(
    routing: RoutingSettings, routes: Routes, readiness: Readiness
) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """What follows the routing table; None where there is none."""
    if routing.table is not None:
        routes.apply(read_file(routing.table))
        return partial(follow_file, routing.table, routes, interval_s=routing.interval_s)
    if not routing.config_map or routing.folder is None:
        return None
    readiness.change(routed=False)

    def routed(_: Table) -> None:
        readiness.change(routed=True)

    routes.on_change(routed)
    api, store = in_cluster(os.environ), Store(routing.folder)
    return partial(
        follow_config_map,
        routing.config_map,
        routes,
        store,
        api=api,
        silent_s=routing.silent_s,
    )


def _loaders(settings: Settings) -> Loaders | None:
    port = settings.engine.loader_port
    return Loaders(port, timeout_s=settings.health.ask_timeout_s) if port else None


def _endpoints(
    settings: Settings,
    routes: Routes,
    loaders: Loaders | None,
    metrics: Metrics,
    readiness: Readiness,
) -> Endpoints[Upstream]:
    chance = Random()  # noqa: S311 - nothing secret

    def discovered() -> None:
        readiness.change(discovered=True)

    endpoints = Endpoints(
        Pool(_rules(settings), chance, zone=settings.balancing.zone),
        open_link=_links(settings.engine),
        questions=EngineQuestions(),
        routing=routes,
        health=settings.health,
        metrics=metrics,
        random=chance,
        # In a pod its own name.
        identity=socket.gethostname(),
        most=settings.balancing.subset,
        first_connection_s=settings.engine.first_connection_s,
        close_after_s=settings.deadline.max_s,
        reports=None if loaders is None else loaders.ask,
        on_discovery=discovered,
    )
    routes.on_change(lambda _: endpoints.ask_anew())
    for connection in Connection:
        counted = partial(endpoints.count, connection)
        metrics.endpoints.labels(connection.value).set_function(counted)
    return endpoints


def _rules(settings: Settings) -> Rules:
    """The balancer's rules, each from the setting of its name."""
    given = settings.balancing.model_dump() | settings.health.model_dump()
    names = {rule.name for rule in dataclasses.fields(Rules)}
    return Rules(**{name: value for name, value in given.items() if name in names})


def _links(engine: EngineSettings) -> Callable[[Endpoint], Link[Upstream]]:
    configs = None
    if engine.protocol == "inference-service" and engine.model_configs is not None:
        configs = ModelConfigs(engine.model_configs)

    def link(endpoint: Endpoint) -> Link[Upstream]:
        channel = open_channel(endpoint.address, engine)
        client = Triton(channel) if configs is None else InferenceServiceEngine(channel, configs)
        return ChannelLink[Upstream](channel, client)

    return link


def _source(settings: Settings) -> Source:
    rules = settings.discovery
    if rules.source == "kubernetes":
        return EndpointSliceSource(
            rules.service,
            namespace=rules.namespace,
            port_name=rules.port_name,
            api=in_cluster(os.environ),
        )
    return AddressSource(
        settings.engine.address,
        interval_s=rules.interval_s,
        lookup_timeout_s=rules.lookup_timeout_s,
    )


def http_app(inference: Inference, settings: Settings) -> FastAPI:
    """The FastAPI application for clients, with its documentation at /docs."""
    app = FastAPI(title="Tidegate", version=__version__, redirect_slashes=False)
    app.add_exception_handler(HTTPException, refuse_unrouted)  # type: ignore[arg-type]
    app.include_router(rest.router(inference, settings))
    app.include_router(rest_v2.router(inference, settings))
    app.include_router(rest_generate.router(inference, settings))
    return app
