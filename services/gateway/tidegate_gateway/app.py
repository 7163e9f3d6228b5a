"""Where the parts meet: the only module that knows all of them.

What is opened here lives exactly as long as the gateway: one channel to the engine, one pool of
decoding threads. It encloses the HTTP and the gRPC server alike, and so belongs to neither.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc.aio
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from tidegate_gateway import __version__, rest, rest_v2, rpc
from tidegate_gateway.admin import Readiness, admin_app
from tidegate_gateway.asgi import AccessMiddleware, refuse_unrouted
from tidegate_gateway.channels import open_channel
from tidegate_gateway.images import ImageDecoder
from tidegate_gateway.inference import Inference, Upstream
from tidegate_gateway.inference_service import InferenceServiceEngine
from tidegate_gateway.metrics import Metrics
from tidegate_gateway.settings import EngineSettings, Settings
from tidegate_gateway.triton import Triton


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that is open, but does not listen yet.

    Attributes:
        http: the ASGI application for clients.
        grpc: the gRPC server for clients, without a port.
        admin: the ASGI application for Kubernetes and Prometheus.
        readiness: what the admin port answers from; whoever runs the servers keeps it.
    """

    http: ASGIApp
    grpc: grpc.aio.Server
    admin: ASGIApp
    readiness: Readiness


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway with `settings`; everything it holds is released at the end.

    Raises:
        InvalidModelConfigs: engine.model_configs cannot be used.
    """
    engine = settings.engine
    metrics, readiness = Metrics(), Readiness()
    decoder = ImageDecoder(
        threads=settings.images.threads,
        max_waiting=settings.images.max_waiting,
        max_pixels=settings.images.max_pixels,
    )
    channel = open_channel(engine)
    try:
        inference = Inference(
            _upstream(engine, channel),
            decoder,
            description_ttl_s=engine.description_ttl_s,
            description_timeout_s=engine.description_timeout_s,
        )
        try:
            yield Gateway(
                http=AccessMiddleware(
                    http_app(inference, settings),
                    metrics,
                    lambda: readiness.draining,
                    name=settings.answers.gateway_name,
                ),
                grpc=rpc.server(inference, settings, metrics),
                admin=admin_app(readiness, metrics),
                readiness=readiness,
            )
        finally:
            await inference.close()
    finally:
        await channel.close()
        decoder.close()


def http_app(inference: Inference, settings: Settings) -> FastAPI:
    """The FastAPI application for clients, with its documentation at /docs."""
    app = FastAPI(title="Tidegate", version=__version__, redirect_slashes=False)
    app.add_exception_handler(HTTPException, refuse_unrouted)  # type: ignore[arg-type]
    app.include_router(rest.router(inference, settings))
    app.include_router(rest_v2.router(inference, settings))
    return app


def _upstream(engine: EngineSettings, channel: grpc.aio.Channel) -> Upstream:
    if engine.protocol == "inference-service" and engine.model_configs is not None:
        return InferenceServiceEngine(channel, engine.model_configs)
    return Triton(channel)
