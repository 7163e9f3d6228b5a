"""The operator against a real API server: what it writes there, and who else may write.

Engines and gateways are stand-ins (see stand_ins.py), so that each may fail when a test says so.
"""

import calendar
import json
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lightkube import KubeConfig

from installation import CHART
from kubernetes import Api, CommandFailed, Kubernetes, eventually
from operator_process import Operator, account, kubeconfig
from stand_ins import TABLE, StandIns, digest_of
from tidegate_operator.cluster import Cluster
from tidegate_operator.errors import Conflict
from tidegate_table.document import Table

Json = dict[str, Any]
ROLLOUTS = "/apis/tidegate.dev/v1alpha1/namespaces/{}/modelrollouts"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
QUICK = {"steps": [{"weight": 10, "hold": "1s"}, {"weight": 50, "hold": "1s"}],
         "bake": "1s", "drain": "1s"}  # fmt: skip


class Place:
    """A namespace with stand-ins, ModelRollouts and an operator for it."""

    def __init__(self, kube: Kubernetes, api: Api, name: str, folder: Path) -> None:
        self.kube = kube
        self.api = api
        self.name = name
        self.stand_ins = StandIns(api, name)
        self._folder = folder
        self.liveness_port = _free_port()

    def operator(self, config: Any = None, *arguments: str) -> Operator:
        """An operator of this namespace."""
        return Operator(config or account(self.kube, self.name), self._folder, [
            f"--namespace={self.name}",
            f"--engines.loader_port={self.stand_ins.loader_port}",
            f"--gateways.admin_port={self.stand_ins.admin_port}",
            "--pace.interval_s=0.2", "--pace.pause_first_s=0.2", "--pace.pause_most_s=1",
            "--lease.holder=first", "--liveness.host=127.0.0.1",
            f"--liveness.port={self.liveness_port}",
            *arguments,
        ])  # fmt: skip

    def make(self, version: int, name: str = "m", **spec: Any) -> None:
        """Make a ModelRollout of model m."""
        spec = {"model": "m", "version": version, "strategy": QUICK, **spec}
        self.api.call("POST", ROLLOUTS.format(self.name), {
            "apiVersion": "tidegate.dev/v1alpha1", "kind": "ModelRollout",
            "metadata": {"name": name}, "spec": spec,
        })  # fmt: skip

    def change(self, **spec: Any) -> None:
        """Change the spec of the ModelRollout m."""
        self.api.call("PATCH", f"{ROLLOUTS.format(self.name)}/m", {"spec": spec})

    def delete(self, name: str = "m") -> None:
        """Delete a ModelRollout."""
        self.api.call("DELETE", f"{ROLLOUTS.format(self.name)}/{name}", {})

    def get(self, name: str = "m") -> Json:
        """A ModelRollout, as it is."""
        found: Json = self.api.call("GET", f"{ROLLOUTS.format(self.name)}/{name}", {})
        return found

    def condition(self, kind: str, name: str = "m") -> Json:
        """A condition of a ModelRollout; {} while there is none."""
        conditions = self.get(name).get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def says(self, kind: str, name: str = "m") -> str:
        """The message of a condition; "" while there is none."""
        return str(self.condition(kind, name).get("message", ""))

    def roll(self) -> Json | None:
        """The roll of model m in the table; None while there is none."""
        table = self.stand_ins.table() or {}
        roll: Json | None = table.get("loads", {}).get("m", {}).get("roll")
        return roll

    def phase(self) -> str:
        """That of the roll of model m; "" without one."""
        return str((self.roll() or {}).get("phase", ""))

    def routes(self) -> Json:
        """What gateways route model m by; {} while they do not."""
        table = self.stand_ins.table() or {}
        routes: Json = table.get("models", {}).get("m", {})
        return routes

    def is_done(self, version: int) -> bool:
        """Whether that version serves all, and nothing else is loaded."""
        table = self.stand_ins.table() or {"loads": {}}
        loads = table["loads"].get("m", {"roll": None, "versions": {}})
        return (
            self.routes() == {"stable": str(version), "weights": {str(version): 100}}
            and [*loads["versions"]] == [str(version)]
            and loads["roll"] is None
        )

    def steps(self) -> list[tuple[str, Json]]:
        """Every (phase, weights) that model m went through."""
        found: list[tuple[str, Json]] = []
        for table in self.stand_ins.seen:
            roll = table["loads"].get("m", {}).get("roll") or {}
            step = (roll.get("phase", ""), table["models"].get("m", {}).get("weights", {}))
            if not found or found[-1] != step:
                found.append(step)
        return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def api(kube: Kubernetes) -> Iterator[Api]:
    """The API server, with the custom resource of the chart."""
    crd = CHART / "crds" / "modelrollouts.yaml"
    kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
    kube.kubectl(
        "wait", "--for=condition=Established", "crd/modelrollouts.tidegate.dev", "--timeout=60s"
    )
    with kube.proxied() as proxied:
        yield proxied


@pytest.fixture
def place(kube: Kubernetes, api: Api, tmp_path: Path) -> Iterator[Place]:
    """A namespace of the test's own."""
    name = f"operator-{uuid.uuid4().hex[:8]}"
    kube.kubectl("create", "namespace", name)
    made = Place(kube, api, name, tmp_path)
    try:
        with made.stand_ins.serving():
            yield made
    finally:
        kube.kubectl("delete", "namespace", name, "--wait=false")


# Rolls


def test_the_first_version_and_a_roll_to_the_next(place: Place) -> None:
    with place.operator().running():
        # It is followed by the next one in no time.
        eventually(lambda: place.stand_ins.table() is not None, "the first table is there")
        place.make(1)
        wait = ("wait", "--for=condition=Available", "modelrollout/m", "--timeout=60s")
        place.kube.kubectl(*wait, f"--namespace={place.name}")
        eventually(lambda: place.is_done(1), "the first version serves")

        place.change(version=2)
        eventually(lambda: place.is_done(2), "the second version serves")

        assert place.steps() == [
            ("", {}),
            ("Loading", {}),
            ("", {"1": 100}),
            ("Loading", {"1": 100}),
            ("Stepping", {"1": 90, "2": 10}),
            ("Stepping", {"1": 50, "2": 50}),
            ("Baking", {"1": 0, "2": 100}),
            ("Promoted", {"2": 100, "1": 0}),
            ("", {"2": 100}),
        ]
        revisions = [table["revision"] for table in place.stand_ins.seen]
        assert revisions == [*range(1, len(revisions) + 1)]
        loads = (place.stand_ins.table() or {})["loads"]["m"]
        assert loads["versions"] == {"2": {"digest": digest_of("2")}}
        assert loads["config"] == place.stand_ins.engines[0].config

        def is_told() -> bool:
            status = place.get()["status"]
            return (status["stableVersion"], status.get("candidateVersion")) == (2, None)

        eventually(is_told, "the status tells it")
        columns = place.kube.kubectl("get", "modelrollouts", f"--namespace={place.name}")
        header, row = columns.splitlines()
        named = dict(zip(header.split(), row.split(), strict=False))
        assert (named["MODEL"], named["WANTED"], named["STABLE"]) == ("m", "2", "2")

    metadata = place.get()["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    events = place.kube.get("events", f"--namespace={place.name}")["items"]
    told = {each["reason"] for each in events if each["involvedObject"]["name"] == "m"}
    assert {"Loading", "Serving", "Stepping", "Baking", "Promoted", "Unloading"} <= told


def test_while_it_rolls_the_columns_tell_how_far_it_is(place: Place) -> None:
    with place.operator().running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        hold_gateways_at(place, "Stepping")
        place.change(version=2)
        eventually(lambda: place.get()["status"].get("weight") == 10, "it steps")
        columns = place.kube.kubectl("get", "mr", f"--namespace={place.name}")

    header, row = columns.splitlines()
    assert row.split()[: len(header.split()) - 1] == [
        "m", "m", "2", "1", "2", "Stepping", "10", "True", "Stepping",
    ]  # fmt: skip


def test_an_operator_that_is_killed_in_each_phase_is_followed_by_one_that_goes_on(
    place: Place,
) -> None:
    operator = place.operator()
    with operator.running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        for engine in place.stand_ins.engines:
            engine.unproven.add("2")
        place.change(version=2)
        for phase in ("Loading", "Stepping", "Baking", "Promoted"):
            eventually(lambda phase=phase: place.phase() == phase, f"it is {phase}")  # type: ignore[misc]
            operator.kill()
            for engine in place.stand_ins.engines:
                engine.unproven.clear()
            upcoming = {"Loading": "Stepping", "Stepping": "Baking", "Baking": "Promoted"}
            hold_gateways_at(place, upcoming.get(phase, ""))
            operator.start()
        eventually(lambda: place.is_done(2), "the second version serves")

    stepped = [weights for phase, weights in place.steps() if phase == "Stepping"]
    assert stepped == [{"1": 90, "2": 10}, {"1": 50, "2": 50}]


def hold_gateways_at(place: Place, phase: str) -> None:
    """Have gateways take no table of that phase; none is held at ""."""
    for gateway in place.stand_ins.gateways:
        gateway.behind_phase = phase


def test_a_bad_version_goes_back_by_itself_and_is_not_tried_again(place: Place) -> None:
    operator = place.operator()
    with operator.running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        hold_gateways_at(place, "Stepping")
        place.change(version=2)
        eventually(lambda: place.phase() == "Stepping", "it steps")
        hold_gateways_at(place, "RollingBack")
        place.stand_ins.engines[1].broken["2"] = "wrong answer to the golden request"
        eventually(lambda: place.phase() == "RollingBack", "it goes back")
        operator.kill()
        hold_gateways_at(place, "")
        operator.start()
        eventually(lambda: place.is_done(1), "the first version serves all again")
        eventually(lambda: place.condition("Progressing")["reason"] == "Failed", "it is told")

        status = place.get()["status"]
        assert (status["failed"]["version"], status["failed"]["generation"]) == (2, 2)
        assert "engine-1: wrong answer to the golden request" in status["failed"]["message"]
        assert place.condition("RolledBack")["status"] == "True"
        assert place.condition("Available")["status"] == "True"
        assert place.condition("Available")["observedGeneration"] == 2

        revision = (place.stand_ins.table() or {})["revision"]
        del place.stand_ins.engines[1].broken["2"]
        place.change(strategy={**QUICK, "bake": "2s"})
        eventually(lambda: place.is_done(2), "with another spec it is tried again")
        assert place.stand_ins.seen[-1]["revision"] > revision


def test_a_deleted_modelrollout_leaves_what_its_spec_said(place: Place) -> None:
    def loads(model: str) -> Json:
        table = place.stand_ins.table() or {"loads": {}}
        found: Json = table["loads"].get(model, {})
        return found

    with place.operator().running():
        place.make(1)
        place.make(1, name="n", model="n", onDelete="Unload")
        eventually(lambda: place.is_done(1), "a first version serves")
        eventually(lambda: loads("n").get("policy", {}).get("onDelete") == "Unload"
                   and loads("n")["roll"] is None, "another model serves")  # fmt: skip
        hold_gateways_at(place, "Stepping")
        place.change(version=2)
        eventually(lambda: place.phase() == "Stepping", "it steps")
        hold_gateways_at(place, "")
        place.delete()
        place.delete("n")
        eventually(lambda: place.is_done(1), "the first version of the one serves all")
        eventually(lambda: not loads("n"), "the other is unloaded")

    assert [*(place.stand_ins.table() or {})["models"]] == ["m"]


def test_the_golden_request_of_a_configmap_comes_into_the_table(place: Place) -> None:
    request = {"inputs": [{"name": "i", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
    with place.operator().running():
        place.make(1, proof={"configMapRef": {"name": "golden"}, "tolerance": "0.01"})
        eventually(
            lambda: "configmap golden" in place.says("Progressing"), "it says what is missing"
        )
        place.kube.apply({"apiVersion": "v1", "kind": "ConfigMap",
                          "metadata": {"name": "golden", "namespace": place.name},
                          "data": {"request.json": json.dumps(request)}})  # fmt: skip
        eventually(lambda: place.is_done(1), "the first version serves")

    proofs = (place.stand_ins.table() or {})["loads"]["m"]["proofs"]
    assert proofs == {"1": {"request": request, "outputs": None, "tolerance": 0.01}}


# Whom it waits for


def test_a_gateway_that_does_not_answer_keeps_the_old_version_loaded(place: Place) -> None:
    silent = place.stand_ins.gateways[1]
    with place.operator().running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        hold_gateways_at(place, "Promoted")
        place.change(version=2)
        eventually(lambda: place.phase() == "Promoted", "it is promoted")
        silent.silent = True
        hold_gateways_at(place, "")
        eventually(lambda: place.says("GatewaysSynced").startswith("awaited: gateway-1"),
                   "it names the gateway")  # fmt: skip
        assert "gateway-0" not in place.says("GatewaysSynced")
        assert place.condition("GatewaysSynced")["status"] == "False"
        assert [*(place.stand_ins.table() or {})["loads"]["m"]["versions"]] == ["1", "2"]

        place.stand_ins.delete(silent)
        eventually(lambda: place.is_done(2), "without that pod it goes on")


def test_a_request_from_before_keeps_the_old_version_loaded(place: Place) -> None:
    busy = place.stand_ins.gateways[0]
    with place.operator().running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        busy.holds = busy.revision
        place.change(version=2)
        eventually(lambda: "gateway-0" in place.says("GatewaysSynced"), "it names the gateway")
        assert [*(place.stand_ins.table() or {})["loads"]["m"]["versions"]] == ["1", "2"]
        busy.holds = 0
        eventually(lambda: place.is_done(2), "it goes on when the request has ended")


# Who else writes


def test_of_two_modelrollouts_for_a_model_the_older_acts(place: Place) -> None:
    place.make(1)
    # Times of creation are whole seconds.
    made = place.get()["metadata"]["creationTimestamp"]
    at = calendar.timegm(time.strptime(made, "%Y-%m-%dT%H:%M:%SZ"))
    eventually(lambda: time.time() >= at + 1, "a second has passed")
    place.make(2, name="another")
    with place.operator().running():
        eventually(lambda: place.condition("Progressing", "another").get("reason") == "Conflict",
                   "the younger is told")  # fmt: skip
        eventually(lambda: place.is_done(1), "the older's version serves")
        assert "ModelRollout m" in place.condition("Progressing", "another")["message"]

        place.delete()
        eventually(lambda: place.is_done(2), "without the older the younger's version serves")


def test_another_ones_lease_keeps_it_from_writing_anything(place: Place) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
             "metadata": {"name": "tidegate-operator"},
             "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}}  # fmt: skip
    leases = LEASE.format(place.name)
    path = f"{leases}/tidegate-operator"
    place.api.call("POST", leases, lease)
    operator = place.operator()
    with operator.running():
        place.make(1)
        alive = f"http://127.0.0.1:{place.liveness_port}/livez"
        eventually(lambda: _status(alive) == 200, "it is alive")
        assert place.stand_ins.table() is None
        assert "status" not in place.get()
        place.api.call("PATCH", path, {"spec": {"holderIdentity": ""}})
        eventually(lambda: place.is_done(1), "it acts when the lease is given back")
        spec = place.api.call("GET", path, {})["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("first", 1)

        hold_gateways_at(place, "Stepping")
        place.change(version=2)
        eventually(lambda: place.phase() == "Stepping", "it steps")
        place.api.call("PATCH", path, {"spec": {"holderIdentity": "another",
                                                "leaseDurationSeconds": 3600}})  # fmt: skip
        lost = "the Lease is lost: nothing is written"
        eventually(lambda: lost in [line["message"] for line in operator.logged()], lost)
        revision = (place.stand_ins.table() or {})["revision"]
        hold_gateways_at(place, "")
        place.change(version=1)
        place.api.call("PATCH", path, {"spec": {"holderIdentity": ""}})
        eventually(lambda: place.is_done(1), "with the lease it goes on")
        (back,) = [table for table in place.stand_ins.seen if table["revision"] == revision + 1]
        assert back["loads"]["m"]["roll"]["phase"] == "RollingBack"

        assert operator.stop() == 0
    assert place.api.call("GET", path, {})["spec"].get("holderIdentity", "") == ""


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            status: int = answer.status
            return status
    except OSError:
        return 0


async def test_a_table_that_has_changed_since_it_was_read_is_not_written_over(
    place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(account(place.kube, place.name)))
    config = KubeConfig.from_file(file).get()
    assert config is not None
    cluster = Cluster(config, namespace=place.name, config_map=TABLE, lease="l", timeout_s=10)
    try:
        await cluster.write_table(Table(1, {}), None)
        with pytest.raises(Conflict):
            await cluster.write_table(Table(2, {}), None)
        first = await cluster.table()
        assert first is not None
        await cluster.write_table(Table(2, {}), first.version)
        with pytest.raises(Conflict):
            await cluster.write_table(Table(3, {}), first.version)
        second = await cluster.table()
        assert second is not None
        assert json.loads(second.content)["revision"] == 2
    finally:
        await cluster.close()


def test_a_table_that_is_deleted_in_mid_roll_is_written_anew(place: Place) -> None:
    with place.operator().running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        hold_gateways_at(place, "Stepping")
        place.change(version=2)
        eventually(lambda: place.phase() == "Stepping", "it steps")
        # Of all, the engines alone have the newest.
        before = (place.stand_ins.table() or {})["revision"]
        eventually(
            lambda: {each.revision for each in place.stand_ins.engines} == {before}, "they have it"
        )
        place.stand_ins.delete_table()
        eventually(
            lambda: (place.stand_ins.table() or {"revision": 0})["revision"] > before,
            "it is written anew",
        )
        assert place.phase() == "Stepping"
        hold_gateways_at(place, "")
        eventually(lambda: place.is_done(2), "the roll goes on to its end")


def test_a_table_that_nobody_shows_is_not_invented(place: Place) -> None:
    operator = place.operator()
    pods = (*place.stand_ins.engines, *place.stand_ins.gateways)
    with operator.running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
        newest = (place.stand_ins.table() or {})["revision"]
        eventually(lambda: place.get()["status"]["table"]["revision"] == newest, "it is told")
        eventually(lambda: {pod.revision for pod in pods} == {newest}, "all have it")
        for pod in pods:
            pod.silent = True
        place.stand_ins.delete_table()
        lost = "the routing table is gone"
        eventually(
            lambda: any(lost in why for why in operator.failures()), "it says what it waits for"
        )
        assert place.stand_ins.table() is None
        for pod in pods:
            pod.silent = False
        eventually(lambda: place.is_done(1), "it is written anew when they answer")
        assert (place.stand_ins.table() or {})["revision"] > newest


# The API server


def test_an_api_server_that_is_away_for_a_while_ends_nothing(place: Place, tmp_path: Path) -> None:
    port = _free_port()
    config = kubeconfig({"server": f"http://127.0.0.1:{port}"}, {}, place.name)
    operator = place.operator(config)
    with proxy(place.kube, port), operator.running():
        place.make(1)
        eventually(lambda: place.is_done(1), "the first version serves")
    # The first operator has been ended with its proxy.
    with operator.running():
        before = len(operator.failures())
        eventually(lambda: len(operator.failures()) > before + 2, "rounds fail")
        with proxy(place.kube, port):
            hold_gateways_at(place, "Baking")
            place.change(version=2)
            eventually(lambda: place.phase() == "Baking", "it bakes")
        before = len(operator.failures())
        eventually(lambda: len(operator.failures()) > before + 2, "rounds fail again")
        hold_gateways_at(place, "")
        with proxy(place.kube, port):
            eventually(lambda: place.is_done(2), "the second version serves")
        assert operator.is_running()


@contextmanager
def proxy(kube: Kubernetes, port: int) -> Iterator[None]:
    """The API server at a port of this machine, for as long as it is there."""
    command = kube.kubectl_command("proxy", f"--port={port}")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200, "it is there")
            yield
        finally:
            process.kill()


# What the API server refuses


STEP = {"weight": 5, "hold": "1s"}
LONG = [{"weight": n, "hold": "1s"} for n in range(1, 22)]
RISE = "weights of steps must rise: each must be above that of the step before"
TIME = "expected a time such as 90s or 1h30m"
NONSENSE: list[tuple[Json, str]] = [
    ({"version": 0}, "should be greater than or equal to 1"),
    ({"version": "two"}, "must be of type integer"),
    ({"model": ""}, "should be at least 1 chars long"),
    ({"model": "../etc"}, "expected the name of a model: letters, digits"),
    ({"digest": "sha256:1"}, "expected a digest: sha256: and 64 hexadecimal digits"),
    ({"memory": "much"}, "expected an amount of memory, such as 2Gi"),
    ({"memory": 0}, "expected an amount of memory, such as 2Gi"),
    ({"strategy": {"steps": [STEP, STEP]}}, RISE),
    ({"strategy": {"steps": [{"weight": 50, "hold": "1s"}, STEP]}}, RISE),
    ({"strategy": {"steps": [{"weight": 100, "hold": "1s"}]}}, "less than or equal to 99"),
    ({"strategy": {"steps": [{"weight": 0, "hold": "1s"}]}}, "greater than or equal to 1"),
    ({"strategy": {"steps": [{"weight": 5}]}}, "steps[0].hold: Required value"),
    ({"strategy": {"steps": [{"weight": 5, "hold": "soon"}]}}, TIME),
    ({"strategy": {"steps": LONG}}, "must have at most 20 items"),
    ({"strategy": {"bake": "-1s"}}, TIME),
    ({"strategy": {"drain": "1d"}}, TIME),
    ({"progressDeadline": "200h"}, "expected at most 168h"),
    ({"strategy": {"type": "PodByPod"}}, "strategy.type PodByPod is not offered yet"),
    ({"strategy": {"type": "Other"}}, 'supported values: "SideBySide"'),
    ({"strategy": {"shadow": {"percent": 10}}}, "strategy.shadow is not offered yet"),
    ({"strategy": {"maxUnavailable": 1}}, "strategy.maxUnavailable is not offered yet"),
    ({"analysis": {"minRequests": 500}}, "analysis is not offered yet"),
    ({"proof": {}}, "configMapRef: Required value"),
    ({"proof": {"configMapRef": {"name": "a"}, "tolerance": "some"}}, "a number such as '0.01'"),
    ({"onFailure": "Cry"}, 'supported values: "RollBack", "Pause"'),
    ({"onDelete": "Burn"}, 'supported values: "Keep", "Unload"'),
]


@pytest.mark.parametrize(("spec", "sentence"), NONSENSE, ids=lambda value: str(value)[:60])
def test_nonsense_is_refused_with_a_sentence(api: Api, spec: Json, sentence: str) -> None:
    with pytest.raises(CommandFailed) as refused:
        _try(api, {"model": "m", "version": 1, **spec})
    message = json.loads(str(refused.value).split(": 422 ", 1)[1])["message"]
    assert sentence in message


def _try(api: Api, spec: Json) -> Json:
    """Have the API server judge a ModelRollout without keeping it."""
    made: Json = api.call("POST", f"{ROLLOUTS.format('default')}?dryRun=All", {
        "apiVersion": "tidegate.dev/v1alpha1", "kind": "ModelRollout",
        "metadata": {"name": "tried"}, "spec": spec,
    })  # fmt: skip
    return made


def test_sense_is_taken(api: Api) -> None:
    made = _try(api, {
        "model": "image_classifier", "version": 20261231235959, "memory": "1.5Gi",
        "digest": digest_of("1"), "paused": True, "progressDeadline": "1h30m",
        "strategy": {"type": "SideBySide", "steps": [], "bake": "0s", "drain": "1.5s"},
        "proof": {"configMapRef": {"name": "golden"}, "tolerance": "0.01"},
    })  # fmt: skip
    assert made["spec"]["onFailure"] == "RollBack"


def test_the_model_cannot_be_changed(place: Place) -> None:
    place.make(1)
    with pytest.raises(CommandFailed, match="model cannot be changed"):
        place.change(model="n")
    place.change(version=2)
    assert place.get()["spec"]["version"] == 2
