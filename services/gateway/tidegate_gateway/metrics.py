"""The gateway's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

# Seconds: from what a tiny model takes to the longest deadline that people set.
_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

UNKNOWN_MODEL = "_unknown"
"""The label of every request whose model no engine has: clients can invent names without end, and
each would be a time series."""


class Metrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._requests = Counter(
            "tidegate_gateway_requests",
            "Requests answered, by protocol (http, grpc), route, model and status",
            ["protocol", "route", "model", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "tidegate_gateway_request_duration_seconds",
            "Time from a request's arrival to its answer",
            ["protocol", "route", "model"],
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "tidegate_gateway_requests_in_flight",
            "Requests that have arrived and are not answered",
            ["protocol"],
            registry=self._registry,
        )

        self.attempts = Counter(
            "tidegate_gateway_attempts",
            "Attempts, by why they began (first, retry, fallback, overdue, hedge) and how they "
            "ended (good, failed, late, dropped)",
            ["model", "reason", "outcome"],
            registry=self._registry,
        )
        self.attempts_refused = Counter(
            "tidegate_gateway_attempts_refused",
            "Further attempts for which there was no budget",
            ["reason"],
            registry=self._registry,
        )
        self.ejections = Counter(
            "tidegate_gateway_ejections",
            "Endpoints taken out for a model, by cause (failures, errors, slow, backend, probe)",
            ["model", "cause"],
            registry=self._registry,
        )
        self.endpoints = Gauge(
            "tidegate_gateway_endpoints",
            "Endpoints, by connection (up, coming, down)",
            ["connection"],
            registry=self._registry,
        )

        self.tasks = Gauge(
            "tidegate_gateway_tasks",
            "Tasks of the event loop: some are always there, and some more for each request",
            registry=self._registry,
        )

    def answered(
        self, *, protocol: str, route: str, model: str, status: str, seconds: float
    ) -> None:
        """Count one answer."""
        self._requests.labels(protocol, route, model, status).inc()
        self._seconds.labels(protocol, route, model).observe(seconds)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
