"""`python -m tidegate_operator`: settings in, the loop under kopf, and away in order after
SIGTERM."""

import asyncio
import logging
import socket
import sys

import kopf
from kopf._core.engines.peering import Identity
from lightkube import ConfigError, KubeConfig, SingleConfig

from tidegate_operator import handlers, settings
from tidegate_operator.cluster import Cluster
from tidegate_operator.lease import Lease
from tidegate_operator.reconcile import Reconciler
from tidegate_operator.settings import Settings
from tidegate_process import logs
from tidegate_process.asking import Asking
from tidegate_process.listening import in_brackets
from tidegate_process.settings import InvalidSettings

_log = logging.getLogger("tidegate_operator")

_CHATTY = ("httpx2", "aiohttp.access", "kopf")
# What kopf adds to records for its own formatters: whole objects.
_OF_KOPF = ("k8s_ref", "k8s_skip", "settings")


class NoCluster(Exception):
    """There is no API server to speak to; the message says what lacks."""


def main() -> int:
    """Run the operator; returns the exit status."""
    try:
        given = settings.load(sys.argv[1:])
        logs.configure(given.log.level, chatty=_CHATTY, hidden=_OF_KOPF)
        config = _config()
    except (InvalidSettings, NoCluster) as error:
        sys.stderr.write(f"tidegate_operator cannot start:\n{error}\n")
        return 1
    try:
        asyncio.run(_operate(given, config))
    # kopf ends by itself when the API server does not know us any more; whoever started us does
    # so again.
    except Exception:  # noqa: BLE001
        _log.exception("the operator ends")
        return 1
    _log.info("gone")
    return 0


async def _operate(given: Settings, config: SingleConfig) -> None:
    namespace = given.namespace or config.namespace
    reconciler = _reconciler(given, config, namespace)
    _log.info("operating", extra={"namespace": namespace, "table": given.table.config_map})
    await kopf.operator(
        registry=handlers.registry_of(reconciler, stuck_s=given.liveness.stuck_s),
        settings=handlers.settings(),
        standalone=True,
        # kopf would ask for the name of our user, which in a container has none.
        identity=Identity(socket.gethostname()),
        namespaces=[namespace],
        liveness_endpoint=f"http://{in_brackets(given.liveness.host)}:{given.liveness.port}/livez",
    )


def _reconciler(given: Settings, config: SingleConfig, namespace: str) -> Reconciler:
    pace = given.pace
    cluster = Cluster(
        config,
        namespace=namespace,
        config_map=given.table.config_map,
        lease=given.lease.name,
        timeout_s=pace.write_timeout_s,
    )
    lease = Lease(
        cluster,
        holder=given.lease.holder or socket.gethostname(),
        duration_s=given.lease.duration_s,
        renew_s=given.lease.renew_s,
    )
    asking = Asking(timeout_s=pace.ask_timeout_s, max_bytes=pace.answer_max_bytes)
    return Reconciler(cluster, asking, lease, given)


def _config() -> SingleConfig:
    try:
        found = KubeConfig.from_env().get()
    except (ConfigError, KeyError) as error:
        raise NoCluster(f"expected a pod's service account or a kubeconfig: {error}") from None
    if found is None:
        raise NoCluster("expected a kubeconfig with a current context, got one without")
    return found


if __name__ == "__main__":
    sys.exit(main())
