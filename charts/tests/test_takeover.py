"""An upgrade that puts a release under the operator: what it begins with, and what it refuses.

Helm asks the cluster what the release is so far. Here a server stands in for the API server, so
that the release can be of any kind; k8s-tests/test_upgrades.py does it on a real one.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidegate_table import document

CHART = Path(__file__).parents[1] / "tidegate"
NAMESPACE = "tidegate"
TABLE = "tidegate-routing"

KINDS = {
    "v1": {"ConfigMap", "Secret", "Service", "ServiceAccount", "Pod"},
    "apps/v1": {"Deployment", "StatefulSet"},
    "policy/v1": {"PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {"Role", "RoleBinding"},
    "tidegate.dev/v1alpha1": {"ModelRollout"},
}

# What the release serves.
SERVED = {"identity": 1, "paced": 2}

Json = dict[str, Any]
Upgrade = Callable[..., Any]


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


class Release:
    """A release that serves without the operator; a test may make it another one."""

    def __init__(self) -> None:
        self.kinds = {group: set(kinds) for group, kinds in KINDS.items()}
        self.objects: dict[str, Json] = {}
        self.rollouts: list[Json] = []
        self.put("apps/v1", "Deployment", "tidegate-gateway", spec=pod("gateway"))
        self.loads("identity", "paced")
        self.routes({"identity": {"stable": "1"}, "paced": {"stable": "2"}})

    def put(self, version: str, kind: str, name: str, **content: Any) -> None:
        prefix = "/api/v1" if version == "v1" else f"/apis/{version}"
        path = f"{prefix}/namespaces/{NAMESPACE}/{plural(kind)}/{name}"
        self.objects[path] = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            **content,
        }

    def loads(self, *models: str) -> None:
        arguments = [f"--load-model={model}" for model in models]
        self.put("apps/v1", "StatefulSet", "tidegate-engine", spec=pod("triton", args=arguments))

    def routes(self, models: Json, name: str = "tidegate-table", **more: Any) -> None:
        table = {"schema": 1, "revision": 3, "models": models, **more}
        self.put("v1", "ConfigMap", name, data={"table.json": json.dumps(table)})

    def answer(self, path: str) -> Json | None:
        if path == "/version":
            return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*self._groups()]}
        if path.endswith("/modelrollouts"):
            return {"kind": "ModelRolloutList", "apiVersion": "tidegate.dev/v1alpha1",
                    "metadata": {}, "items": self.rollouts}  # fmt: skip
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if group in self.kinds:
            known = [resource(kind) for kind in sorted(self.kinds[group])]
            return {"kind": "APIResourceList", "groupVersion": group, "resources": known}
        return self.objects.get(path)

    def _groups(self) -> Iterator[Json]:
        for group in sorted(self.kinds.keys() - {"v1"}):
            name, _, version = group.partition("/")
            known = {"groupVersion": group, "version": version}
            yield {"name": name, "versions": [known], "preferredVersion": known}


def pod(name: str, **container: Any) -> Json:
    return {"template": {"spec": {"containers": [{"name": name, **container}]}}}


def resource(kind: str) -> Json:
    return {
        "name": plural(kind),
        "singularName": kind.lower(),
        "namespaced": True,
        "kind": kind,
        "verbs": ["get", "list"],
    }


@contextmanager
def api_server(release: Release) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = release.answer(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                       "reason": "NotFound", "code": 404}  # fmt: skip
            said = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def before() -> Release:
    return Release()


@pytest.fixture
def upgrade(before: Release, run_helm: Any, tmp_path: Path) -> Iterator[Upgrade]:
    """What Helm makes of an upgrade of the release to the chart with its operator."""
    with api_server(before) as url:
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }))  # fmt: skip

        def run(*arguments: str, versions: Mapping[str, int] = SERVED) -> Any:
            return run_helm(
                *("template", "tidegate", CHART, f"--namespace={NAMESPACE}", "--is-upgrade"),
                *("--dry-run=server", "--disable-openapi-validation", f"--kubeconfig={config}"),
                "--set=rollouts.image_classifier=null",
                *(
                    f"--set=rollouts.{model}.version={version}"
                    for model, version in versions.items()
                ),
                *arguments,
            )

        yield run


def first_table(done: Any) -> Json | None:
    """The ConfigMap with the table that the operator begins with."""
    assert done.returncode == 0, done.stderr
    made: list[Json] = [
        each
        for each in yaml.safe_load_all(done.stdout)
        if each and (each["kind"], each["metadata"]["name"]) == ("ConfigMap", TABLE)
    ]
    return made[0] if made else None


def test_it_begins_with_what_serves(upgrade: Upgrade) -> None:
    made = first_table(upgrade())
    assert made is not None
    # Made before all else, and neither changed nor removed by Helm later.
    assert made["metadata"]["annotations"] == {"helm.sh/hook": "pre-upgrade"}
    table = document.read(made["data"]["table.json"].encode())
    assert table.revision == 1
    assert {name: each.weights for name, each in table.models.items()} == {
        "identity": {"1": 100},
        "paced": {"2": 100},
    }
    # Engines are not ready before they have proven these.
    assert {name: each.versions for name, each in table.loads.items()} == {
        "identity": {"1": ""},
        "paced": {"2": ""},
    }


def test_a_release_without_a_table_begins_with_the_versions_that_are_wanted(
    before: Release, upgrade: Upgrade
) -> None:
    before.routes({})
    made = first_table(upgrade())
    assert made is not None
    assert document.read(made["data"]["table.json"].encode()).models["paced"].stable == "2"


def test_its_revision_is_above_those_of_an_earlier_operator(
    before: Release, upgrade: Upgrade
) -> None:
    before.rollouts = [{"status": {"table": {"revision": 57}}}, {"spec": {}}]
    made = first_table(upgrade())
    assert made is not None
    assert document.read(made["data"]["table.json"].encode()).revision == 58


def test_a_release_with_the_operator_is_not_taken_over(before: Release, upgrade: Upgrade) -> None:
    following = pod("gateway", env=[{"name": "TIDEGATE_ROUTING__CONFIG_MAP", "value": TABLE}])
    before.put("apps/v1", "Deployment", "tidegate-gateway", spec=following)
    assert first_table(upgrade(versions={"identity": 7})) is None


def test_one_that_stays_without_it_is_not_taken_over(upgrade: Upgrade) -> None:
    done = upgrade("--set=operator.enabled=false,engine.models={identity}", versions={})
    assert first_table(done) is None


def test_a_fitting_table_of_an_earlier_operator_is_kept(before: Release, upgrade: Upgrade) -> None:
    routes = {"identity": {"stable": "1"}, "paced": {"stable": "2"}, "gone": {"stable": "9"}}
    loads = {model: {"versions": {each["stable"]: {"digest": ""}}}
             for model, each in routes.items()}  # fmt: skip
    before.routes(routes, TABLE, loads=loads)
    assert first_table(upgrade()) is None


@pytest.mark.parametrize(
    ("routes", "loads"),
    [
        ({"identity": {"stable": "1"}, "paced": {"stable": "1"}}, {"identity": {}, "paced": {}}),
        ({"identity": {"stable": "1"}}, {"identity": {}, "paced": {}}),
        ({"identity": {"stable": "1"}, "paced": {"stable": "2"}}, {"identity": {}}),
    ],
    ids=["another version", "not routed", "not loaded"],
)
def test_another_table_of_an_earlier_operator_is_refused(
    routes: Json, loads: Json, before: Release, upgrade: Upgrade
) -> None:
    before.routes(routes, TABLE, loads=loads)
    done = upgrade()
    assert done.returncode != 0
    assert (
        "operator.enabled: expected a routing table by which version 2 of paced serves, as it "
        "does, got the table of an earlier operator, in which it does not: kubectl --namespace "
        "tidegate delete configmap tidegate-routing, then upgrade again"
    ) in done.stderr


def test_without_the_kind_it_is_refused(before: Release, upgrade: Upgrade) -> None:
    del before.kinds["tidegate.dev/v1alpha1"]
    done = upgrade()
    assert done.returncode != 0
    assert "operator.enabled: expected the kind ModelRollout in the cluster" in done.stderr
    assert "kubectl apply --server-side --force-conflicts --filename crds/" in done.stderr


def test_engines_of_ones_own_are_refused(before: Release, upgrade: Upgrade) -> None:
    before.objects = {
        path: each for path, each in before.objects.items() if each["kind"] != "StatefulSet"
    }
    done = upgrade()
    assert done.returncode != 0
    assert (
        "operator.enabled: expected a release with engines of the chart's own, since its gateways "
        "serve without the operator so far, got none: install a second release"
    ) in done.stderr


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (
            {"identity": 1},
            "rollouts.paced: expected the version that serves, since the release serves this model "
            "without the operator so far, got none",
        ),
        (
            {"identity": 1, "paced": 3},
            "rollouts.paced.version: expected 2, the version that serves without the operator so "
            "far, got 3: roll to it once the operator is there",
        ),
    ],
)
def test_another_version_than_the_one_that_serves_is_refused(
    versions: dict[str, int], sentence: str, upgrade: Upgrade
) -> None:
    done = upgrade(versions=versions)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_split_traffic_is_refused(before: Release, upgrade: Upgrade) -> None:
    before.routes({"paced": {"stable": "2", "weights": {"2": 95, "1": 5, "3": 0}}})
    done = upgrade()
    assert done.returncode != 0
    assert (
        "operator.enabled: expected all requests for paced to go to version 2 before the operator "
        "takes over, got 5% to version 1: change routing.models first"
    ) in done.stderr


def test_an_installation_takes_nothing_over(run_helm: Any) -> None:
    done = run_helm("template", "tidegate", CHART, f"--namespace={NAMESPACE}")
    assert first_table(done) is None
