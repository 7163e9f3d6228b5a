"""The release of the tests of rolls: three engines, two gateways, the operator; and what it tells.

The models lie in a folder of this machine, which the nodes of the test cluster see as well: a
repository that all engines share, into which a test can publish a version.
"""

import http.client
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from installation import CHART, ENGINES, GATEWAYS, ROOT
from kubernetes import Api, CommandFailed, Kubernetes, eventually
from node.cluster import Cluster
from node.nodes import CTR
from tidegate_table.document import Phase, Roll, Table, read

NAMESPACE = "rolls"
RELEASE = "tidegate"
OPERATORS = "app.kubernetes.io/component=operator"
STATEFUL_SET = f"{RELEASE}-engine"
GATEWAY_DEPLOYMENT = f"{RELEASE}-gateway"
OPERATOR_DEPLOYMENT = f"{RELEASE}-operator"
MODELS = ("image_classifier", "versioned")
EXAMPLES = ROOT / "docs" / "examples"

# The golden request of the model `versioned`. Where a version answers wrongly, only this can tell.
(PROOF,) = (
    document["spec"]["proof"]
    for document in yaml.safe_load_all((EXAMPLES / "proof.yaml").read_text())
    if document["kind"] == "ModelRollout"
)

_VALUES = Path(__file__).parents[1] / "values-rolls.yaml"
_ENGINE_PYTHON = ROOT / ".venvs" / "engine" / "bin" / "python"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_ROLLOUTS = f"/apis/tidegate.dev/v1alpha1/namespaces/{NAMESPACE}/modelrollouts"
_LOADER_PORT = 8003
_ADMIN_PORT = 8082
# For one answer, of a part of the release or of the API server.
_ASK_S = 10.0

Json = Mapping[str, Any]


def install_words(repository: Path, *more: str) -> list[str]:
    """`helm upgrade --install` of the release."""
    return [
        "upgrade",
        "--install",
        RELEASE,
        str(CHART),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        f"--values={CHART / 'values-local.yaml'}",
        f"--values={_VALUES}",
        f"--set=engine.repository.hostPath={repository}",
        "--wait",
        "--timeout=5m",
        *more,
    ]


def make_repository(folder: Path) -> None:
    """Put the models into a repository, as the engine's environment builds them."""
    command = [str(_ENGINE_PYTHON), "-m", "tidegate_engine.artefacts", f"--repository={folder}"]
    subprocess.run([*command, *(f"--model={name}" for name in MODELS)], check=True)


def rollout(
    model: str,
    version: int,
    *,
    steps: Sequence[tuple[int, str]] = ((50, "1s"),),
    bake: str = "1s",
    drain: str = "1s",
    **spec: Any,
) -> Json:
    """A ModelRollout, with holds that are short where none are given."""
    strategy = {
        "steps": [{"weight": weight, "hold": hold} for weight, hold in steps],
        "bake": bake,
        "drain": drain,
    }
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "ModelRollout",
        "metadata": {"name": name_of(model), "namespace": NAMESPACE},
        "spec": {"model": model, "version": version, "strategy": strategy, **spec},
    }


def name_of(model: str) -> str:
    """What the ModelRollout of a model is called, as the chart calls it."""
    return model.replace("_", "-")


@dataclass(frozen=True)
class Container:
    """A container of a pod.

    Attributes:
        node: that its pod is on.
        id: another one after each start; "" before the first.
        ready: whether it is.
        restarts: how often it was started again.
    """

    node: str
    id: str
    ready: bool
    restarts: int


@dataclass(frozen=True)
class Rolls:
    """The release, as the API server, its loaders and its gateways tell it.

    Attributes:
        repository: the folder with the models.
    """

    kube: Kubernetes
    cluster: Cluster
    api: Api
    repository: Path

    # What there is

    def table(self) -> Table:
        """The routing table."""
        document = self._get(f"{_CORE}/configmaps/{RELEASE}-routing")
        return read(document["data"]["table.json"].encode())

    def roll(self, model: str) -> Roll | None:
        """Where the roll of a model stands; None where there is none."""
        loads = self.table().loads.get(model)
        return loads.roll if loads else None

    def rollout(self, model: str) -> Any:
        """The ModelRollout of a model, as the API has it."""
        return self._get(f"{_ROLLOUTS}/{name_of(model)}")

    def condition(self, model: str, kind: str) -> Json:
        """A condition of the ModelRollout of a model; empty while it has none."""
        conditions = self.rollout(model).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def pods(self, selector: str) -> dict[str, Json]:
        """The pods that do not go, by name."""
        items = self._get(f"{_CORE}/pods?labelSelector={selector.replace('=', '%3D')}")["items"]
        found = {item["metadata"]["name"]: item for item in items}
        return {
            name: found[name]
            for name in sorted(found)
            if "deletionTimestamp" not in found[name]["metadata"]
        }

    def ready(self, selector: str) -> dict[str, str]:
        """The name of each pod that is ready and does not go → its uid."""
        return {
            name: pod["metadata"]["uid"]
            for name, pod in self.pods(selector).items()
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in pod["status"].get("conditions", [])
            )
        }

    def engines(self) -> list[str]:
        """The names of all engines that do not go."""
        return [*self.pods(ENGINES)]

    def gateways(self) -> list[str]:
        """The names of all gateways that do not go."""
        return [*self.pods(GATEWAYS)]

    def container(self, pod: str, name: str) -> Container:
        """A container of a pod, sidecars included."""
        found = self._get(f"{_CORE}/pods/{pod}")
        node, status = found["spec"].get("nodeName", ""), found["status"]
        sidecars = status.get("initContainerStatuses", [])
        for each in [*status.get("containerStatuses", []), *sidecars]:
            if each["name"] == name:
                uid = each.get("containerID", "").removeprefix("containerd://")
                return Container(node, uid, each["ready"], each["restartCount"])
        return Container(node, "", ready=False, restarts=0)

    def address(self, pod: str) -> str:
        """The pod's own."""
        return str(self._get(f"{_CORE}/pods/{pod}")["status"].get("podIP", ""))

    def loader(self, engine: str) -> Any:
        """What its loader reports; {} where it does not answer."""
        return answer(self.address(engine), _LOADER_PORT, "/status")

    def versions(self, engine: str, model: str) -> Any:
        """Version → what the loader of an engine reports of it."""
        return self.loader(engine).get("models", {}).get(model, {}).get("versions", {})

    def routing(self, gateway: str) -> Any:
        """What a gateway routes by; {} where it does not answer."""
        return routing_at(self.address(gateway))

    # What is done

    def apply(self, *manifests: Json) -> None:
        """Have these objects be as they are written here, whoever wrote them before."""
        self.kube.apply(*manifests)

    def change(self, model: str, **spec: Any) -> None:
        """Change members of the spec of a model's ModelRollout."""
        self.api.call("PATCH", f"{_ROLLOUTS}/{name_of(model)}", {"spec": spec})

    def delete(self, model: str) -> None:
        """Delete the ModelRollout of a model."""
        self.api.call("DELETE", f"{_ROLLOUTS}/{name_of(model)}", {})

    def kill(self, container: Container) -> None:
        """SIGKILL to the first process of a container, from outside; needs no API server."""
        words = ("tasks", "kill", "--signal", "SIGKILL", container.id)
        self.cluster.node(container.node).run((*CTR, *words))

    def let_go_on(self, model: str) -> None:
        """Shorten all holds of the roll that is on its way."""
        strategy = {"steps": [{"weight": 50, "hold": "1s"}], "bake": "1s", "drain": "1s"}
        self.change(model, strategy=strategy)

    def begin_half(self, model: str, version: int) -> Roll:
        """Begin a roll that stays at half of the requests, until `let_go_on`."""
        self.apply(rollout(model, version, steps=[(50, "10m")]))
        return self.await_phase(model, Phase.STEPPING)

    # What is waited for

    def await_phase(
        self, model: str, phase: Phase, *, step: int = 0, timeout_s: float = 60
    ) -> Roll:
        """Wait until the roll of a model is in a phase, and, where it is stepping, at a step."""
        found: list[Roll] = []

        def is_there() -> bool:
            roll = self.roll(model)
            if roll is not None and (roll.phase, roll.step) == (phase, step):
                found.append(roll)
            return bool(found)

        self.wait(is_there, f"the roll of {model} is {phase.value}", timeout_s)
        return found[0]

    def await_settled(self, model: str, version: int, timeout_s: float = 90) -> None:
        """Wait until a model is rolled to a version, and every engine has that one alone."""
        self.wait(
            lambda: self._is_settled(model, str(version)),
            f"version {version} of {model} is alone, and ready on every engine",
            timeout_s,
        )

    def await_failure(self, model: str, version: int) -> Json:
        """Wait until a version is known to have failed; returns what the status says of it."""

        def failed() -> Any:
            return self.rollout(model).get("status", {}).get("failed", {})

        self.wait(lambda: bool(failed().get("version") == version), f"version {version} has failed")
        said: Json = failed()
        print(f"{said['reason']}: {said['message']}\n")
        # For people who roll models: no files of the engine, no addresses and no traceback.
        assert said["message"]
        found = [word for word in ("Traceback", "/models", "/opt", "10.244.") if word in str(said)]
        assert not found
        return said

    def wait(self, check: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        """Wait until something is so; fails with what the ModelRollouts and the loaders say."""

        def is_so() -> bool:
            try:
                return check()
            except (CommandFailed, OSError, http.client.HTTPException):
                return False  # The API server has just come back, or is overloaded.

        try:
            eventually(is_so, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def told(self) -> str:
        """How everything stands, for whoever reads why a test failed."""
        lines = [self.kube.kubectl("get", "modelrollouts", "--output=wide", "-n", NAMESPACE)]
        table = self.table()
        lines += [f"revision {table.revision}", f"{table.models}"]
        lines += [f"{name}: {loads.versions} {loads.roll}" for name, loads in table.loads.items()]
        lines += [f"{name}: {self.loader(name).get('models')}" for name in self.engines()]
        return "\n".join(lines)

    def _is_settled(self, model: str, version: str) -> bool:
        table = self.table()
        loads, routes = table.loads.get(model), table.models.get(model)
        if loads is None or routes is None or loads.roll is not None:
            return False
        if routes.stable != version or [*loads.versions] != [version]:
            return False
        engines = self.engines()
        return set(self.ready(ENGINES)) == set(engines) and all(
            self._has_alone(engine, model, version, table.revision) for engine in engines
        )

    def _has_alone(self, engine: str, model: str, version: str, revision: int) -> bool:
        said = self.loader(engine)
        if (said.get("revision") or 0) < revision:
            return False
        versions = said["models"].get(model, {}).get("versions", {})
        loaded = [name for name, each in versions.items() if each["loaded"]]
        return loaded == [version] and bool(versions[version]["proven"])

    def _get(self, path: str) -> Any:
        # Without a body, which `Api.call` has: kubectl's proxy now and then cuts an answer off when
        # it has not read the whole request.
        status, said = _ask("127.0.0.1", self.api.port, path)
        if status != http.client.OK:
            raise CommandFailed(f"GET {path}: {status} {said.decode()}")
        return json.loads(said)


def routing_at(address: str) -> Any:
    """What the gateway at an address routes by; {} where none answers."""
    return answer(address, _ADMIN_PORT, "/routing")


def answer(address: str, port: int, path: str) -> Any:
    """The JSON that comes from a pod; {} where none comes."""
    if not address:
        return {}
    try:
        status, said = _ask(address, port, path)
    except (OSError, http.client.HTTPException):
        return {}
    return json.loads(said) if status == http.client.OK else {}


def _ask(address: str, port: int, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(address, port, timeout=_ASK_S)) as connection:
        connection.request("GET", path)
        came = connection.getresponse()
        return came.status, came.read()


def is_there(kube: Kubernetes) -> bool:
    """Whether the API server answers."""
    try:
        kube.kubectl("get", "--raw", "/readyz", "--request-timeout=3s")
    except CommandFailed:
        return False
    return True
