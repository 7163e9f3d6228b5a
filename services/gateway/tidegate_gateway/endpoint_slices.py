"""Endpoints from Kubernetes: the EndpointSlices of one Service, listed once and then watched.

The API server tells of each change at once, and of what DNS cannot: pods that are leaving or not
ready, their names and zones. How it is listed and watched is `tidegate_table.api_server`'s.

The gateway's service account needs a Role in the namespace of the Service:

    apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate_gateway.discovery import Endpoint, address_of, announced, outage
from tidegate_table.api_server import ApiServer, Follower, Objects, Pace, text

Slice = Mapping[str, Any]
"""An EndpointSlice of discovery.k8s.io/v1, as JSON has it."""


# From slices to endpoints


@dataclass(frozen=True, slots=True)
class Reading:
    """What one slice says.

    Attributes:
        endpoints: those with a numeric address, in the order of the slice.
        ports: the names of its ports; none where it has no endpoints.
        refused: the addresses that are not numeric ones, and are left out.
    """

    endpoints: tuple[Endpoint, ...]
    ports: frozenset[str]
    refused: tuple[str, ...]


def read(each: Slice, port_name: str) -> Reading:
    """What a slice says of the engines.

    Args:
        port_name: the name of the engines' gRPC port; a slice without it has no endpoints for us.

    Raises:
        LookupError, TypeError, AttributeError: it is no EndpointSlice.
    """
    entries = each.get("endpoints") or ()
    ports = {text(port.get("name")): port.get("port") for port in each.get("ports") or ()}
    port = ports.get(port_name) or 0
    if not isinstance(port, int):
        raise TypeError(f"expected the number of a port, got {port!r}")
    endpoints, refused = [], []
    if port and each["addressType"] in {"IPv4", "IPv6"}:
        for entry in entries:
            # The API gives no meaning to further addresses of an endpoint.
            host = text(entry["addresses"][0])
            try:
                endpoints.append(_endpoint(entry, address_of(host, port)))
            except ValueError:
                refused.append(host)
    return Reading(tuple(endpoints), frozenset(ports if entries else ()), tuple(refused))


def _endpoint(entry: Mapping[str, Any], address: str) -> Endpoint:
    conditions = entry.get("conditions") or {}
    return Endpoint(
        address=address,
        name=text((entry.get("targetRef") or {}).get("name")) or address,
        zone=text(entry.get("zone")),
        # Unknown means true. Where the Service has publishNotReadyAddresses, `ready` always is,
        # and `serving` says how the pod really is.
        ready=conditions.get("ready") is not False and conditions.get("serving") is not False,
        terminating=conditions.get("terminating") is True,
    )


def merged(readings: Iterable[Reading]) -> tuple[Endpoint, ...]:
    """The endpoints in all slices of a Service, ordered by address and each once.

    A pod that moves from one slice to another stands in both for a while, and one of the two may be
    old; the better state is taken: https://kubernetes.io/docs/concepts/services-networking/
    endpoint-slices/#duplicate-endpoints. A Service with both IP families names each pod twice, and
    its engines would then count twice: leave it at one.
    """
    best: dict[str, Endpoint] = {}
    for reading in readings:
        for found in reading.endpoints:
            known = best.get(found.address, found)
            best[found.address] = max(known, found, key=_quality)
    return tuple(best[address] for address in sorted(best))


def _quality(endpoint: Endpoint) -> tuple[bool, bool, bool, str, str]:
    # The last two only make the choice the same in whatever order the slices come.
    staying = not endpoint.terminating
    return endpoint.ready and staying, endpoint.ready, staying, endpoint.zone, endpoint.name


class Slices(Objects[Reading]):
    """The slices of a Service, by what has been listed and watched of them so far.

    Args:
        port_name: the name of the engines' gRPC port.
    """

    def __init__(self, port_name: str) -> None:
        super().__init__("EndpointSliceList", lambda each: read(each, port_name))
        self._port_name = port_name

    def endpoints(self) -> tuple[Endpoint, ...]:
        """See `merged`."""
        return merged(self.found.values())

    def doubts(self) -> dict[str, dict[str, object]]:
        """What is most likely a mistake in how the Service was named or set up.

        Returns:
            Sentences, each with the values that it is about; of many addresses the first five.
        """
        found: dict[str, dict[str, object]] = {}
        readings = self.found.values()
        if not readings:
            found["the Service has no EndpointSlices"] = {}
        ports = {name for reading in readings for name in reading.ports}
        if ports and self._port_name not in ports:
            found["no endpoint has a port of the name that was asked for"] = {
                "port_name": self._port_name,
                "ports": sorted(ports),
            }
        refused = sorted({host for reading in readings for host in reading.refused})
        if refused:
            found["endpoints are left out: their addresses are not numeric"] = {
                "addresses": refused[:5]
            }
        return found


# The source


class EndpointSliceSource:
    """The endpoints of a Service.

    Args:
        service: its name.
        namespace: its namespace; "": our own.
        port_name: the name that the engines' gRPC port has in the Service.
        api: the API server; `in_cluster` finds it.
    """

    def __init__(
        self,
        service: str,
        namespace: str = "",
        port_name: str = "grpc",
        *,
        api: ApiServer,
        pace: Pace | None = None,
    ) -> None:
        self._service = service
        self._namespace = namespace or api.namespace
        self._port_name = port_name
        self._api = api
        self._pace = pace or Pace()

    def snapshots(self) -> AsyncGenerator[tuple[Endpoint, ...], None]:
        """See `discovery.Source`."""
        about = {
            "source": "kubernetes",
            "service": self._service,
            "namespace": self._namespace,
        }
        slices = Slices(self._port_name)
        follower = Follower(
            self._api,
            f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices",
            {"labelSelector": f"kubernetes.io/service-name={self._service}"},
            slices,
            outage=outage(**about),
            about=about,
            pace=self._pace,
        )
        return announced(
            [follower.follow],
            lambda: slices.endpoints() if follower.is_listed else None,
            follower.changed,
        )
