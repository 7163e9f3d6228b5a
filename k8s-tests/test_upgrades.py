"""What becomes of a release, its key and its ModelRollouts over upgrades and uninstalls.

One release of one gateway and one engine is used by all: it is installed without the operator, put
under it, and removed and installed again.
"""

import copy
import http.client
import json
import re
import shlex
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from installation import CHART, GATEWAYS, RELEASE, ROOT, bring_kind, remove, uninstall
from kubernetes import Api, CommandFailed, Kubernetes, eventually
from stage import Stage

NAMESPACE = "upgrades"
MODEL = "identity"
# Of a ModelRollout that is no part of the release.
OWN = "paced"
CRD = "modelrollouts.tidegate.dev"
INSTALL_PAGE = (ROOT / "docs" / "install.md").read_text()

# What every namespace has.
ALWAYS = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
# What people made, and what the operator did.
PEOPLES = {f"modelrollout.tidegate.dev/{OWN}", "secret/mine"}
OPERATORS = {f"configmap/{RELEASE}-routing", f"lease.coordination.k8s.io/{RELEASE}-operator"}

_ASK_S = 5.0
_PAUSE_S = 0.2

WITHOUT_OPERATOR = (
    "--set=operator.enabled=false",
    f"--set=engine.models={{{MODEL}}}",
    f"--set-string=routing.models.{MODEL}.stable=1",
)
WITH_OPERATOR = ("--set=rollouts.image_classifier=null", f"--set=rollouts.{MODEL}.version=1")
NAMES_ANOTHER_MODEL = ("--set=rollouts.image_classifier=null", f"--set=rollouts.{OWN}.version=1")
NAMES_ANOTHER_VERSION = (WITH_OPERATOR[0], f"--set=rollouts.{MODEL}.version=2")


@dataclass(frozen=True)
class Watched:
    """What was seen from outside while the release was put under the operator.

    Attributes:
        before: the gateways that were there at first.
        refused: what Helm said where the values would have left the model without an answer.
        statuses: the name of a gateway → what it answered for the model, in order.
    """

    before: tuple[str, ...]
    refused: list[str] = field(default_factory=list)
    statuses: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


@pytest.fixture(scope="module")
def kind(kube: Kubernetes) -> None:
    bring_kind(kube)


@pytest.fixture(scope="module")
def taken_over(kube: Kubernetes, kind: None, stage: Stage) -> Watched:
    """The release, installed without the operator and then put under it."""
    return stage.shows("upgrades", lambda: taking_over(kube))


@contextmanager
def taking_over(kube: Kubernetes) -> Iterator[Watched]:
    try:
        upgrade(kube, *WITHOUT_OPERATOR)
        with kube.proxied() as api, watched(api) as seen:
            for wrong in (NAMES_ANOTHER_MODEL, NAMES_ANOTHER_VERSION):
                with pytest.raises(CommandFailed) as refusal:
                    upgrade(kube, *wrong)
                seen.refused.append(str(refusal.value))
            upgrade(kube, *WITH_OPERATOR)
        await_models(kube)
        yield seen
    finally:
        remove(kube, NAMESPACE)


@pytest.fixture
def release(kube: Kubernetes, taken_over: Watched) -> Kubernetes:
    return kube


def upgrade(kube: Kubernetes, *more: str) -> None:
    """`helm upgrade --install` of the release, so that it leaves as fast as it can."""
    kube.helm(
        *("upgrade", "--install", RELEASE, str(CHART), f"--namespace={NAMESPACE}"),
        *("--create-namespace", f"--values={CHART / 'values-local.yaml'}"),
        *("--set=gateway.replicas=1,engine.replicas=1", "--wait", "--timeout=4m"),
        "--set=gateway.settings.drain.delay_s=1,engine.drain.delaySeconds=1",
        *(f"--set=test.model={MODEL},test.classify=false", *more),
        timeout_s=300,
    )


def await_models(kube: Kubernetes) -> None:
    """Wait until the release's models serve, as its own notes tell."""
    notes = kube.helm("get", "notes", RELEASE, f"--namespace={NAMESPACE}")
    (command,) = re.findall(r"^ +(kubectl .*--for=condition=Available.*)$", notes, re.MULTILINE)
    kube.kubectl(*shlex.split(command)[1:], "--timeout=2m")


def check_serving(kube: Kubernetes) -> None:
    """`helm test` of the release's model, which waits for it; and the other one serves as well."""
    said = kube.helm("test", RELEASE, f"--namespace={NAMESPACE}", "--logs")
    assert "Phase:          Succeeded" in said, said
    with kube.forwarded(NAMESPACE, f"service/{RELEASE}-gateway", 8080) as address:
        eventually(lambda: status(address, f"/v2/models/{OWN}/ready") == 200, f"{OWN} serves")


def status(address: str, path: str) -> int:
    """What is answered at host:port; 0 where nobody answers."""
    try:
        with closing(http.client.HTTPConnection(address, timeout=_ASK_S)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0


@contextmanager
def watched(api: Api) -> Iterator[Watched]:
    """Ask every ready gateway for the model, again and again."""
    seen, is_over = Watched(tuple(ready_gateways(api))), threading.Event()

    def ask() -> None:
        while not is_over.wait(_PAUSE_S):
            # The API server may be overloaded for a moment; the rest of the time counts.
            with suppress(CommandFailed, OSError, http.client.HTTPException):
                for name, address in ready_gateways(api).items():
                    seen.statuses[name].append(status(f"{address}:8080", f"/v2/models/{MODEL}"))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield seen
    finally:
        is_over.set()
        asking.join()


def ready_gateways(api: Api) -> dict[str, str]:
    """The name of each gateway that is ready and does not go → its address."""
    selector = GATEWAYS.replace("=", "%3D")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}"
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in api.call("GET", path, {})["items"]
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in pod["status"].get("conditions", [])
        )
    }


def left(kube: Kubernetes) -> set[str]:
    """All that is in the namespace, but Events."""
    kinds = kube.kubectl("api-resources", "--verbs=list", "--namespaced", "--output=name").split()
    listed = ",".join(kind for kind in kinds if not kind.startswith("events"))
    found = kube.kubectl("get", listed, f"--namespace={NAMESPACE}", "--output=name")
    return {*found.split()}


def table(kube: Kubernetes) -> Any:
    """The operator's routing table."""
    found = kube.get("configmap", f"{RELEASE}-routing", f"--namespace={NAMESPACE}")
    return json.loads(found["data"]["table.json"])


def rollout(model: str, namespace: str = NAMESPACE, **spec: Any) -> Mapping[str, Any]:
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "ModelRollout",
        "metadata": {"name": model, "namespace": namespace},
        "spec": {"model": model, "version": 1, **spec},
    }


def test_a_release_is_put_under_the_operator_and_its_models_stay(taken_over: Watched) -> None:
    """With one engine there is a moment without any (503), but never one in which gateways do not
    know the model (404)."""
    seen = taken_over.statuses
    later = seen.keys() - {*taken_over.before}
    assert later, "no new gateway was asked"
    statuses = {code for asked in seen.values() for code in asked}
    assert 404 not in statuses, seen
    for name in later:
        assert 200 in seen[name], seen


def test_an_upgrade_that_would_leave_a_model_without_an_answer_is_refused(
    taken_over: Watched,
) -> None:
    forgotten, another = taken_over.refused
    assert f"rollouts.{MODEL}: expected the version that serves" in forgotten
    assert f"rollouts.{MODEL}.version: expected 1, the version that serves" in another


def test_the_key_stays_over_an_upgrade_and_no_engine_is_replaced(release: Kubernetes) -> None:
    def found() -> Any:
        words = (f"{RELEASE}-engine", f"--namespace={NAMESPACE}")
        return (
            release.get("secret", *words)["data"],
            release.get("statefulset", *words)["spec"]["template"],
            release.get("pod", f"{RELEASE}-engine-0", words[1])["metadata"]["uid"],
        )

    before = found()
    upgrade(release, *WITH_OPERATOR)
    assert found() == before
    assert len(before[0]["key"]) > 40


def test_what_people_and_the_operator_made_stays_and_a_release_goes_on_with_it(
    release: Kubernetes,
) -> None:
    """And this one has a key of its own."""
    release.kubectl(
        "create", "secret", "generic", "mine", "--from-literal=key=abc123", "-n", NAMESPACE
    )
    release.apply(rollout(OWN))
    release.kubectl(
        "wait", f"modelrollout/{OWN}", "--for=condition=Available", "--timeout=2m", "-n", NAMESPACE
    )
    before = table(release)
    uninstall(release, NAMESPACE)
    # Pods take their grace period to leave, and Helm does not always wait for all of it.
    eventually(
        lambda: left(release) <= ALWAYS | PEOPLES | OPERATORS, "nothing else is left", timeout_s=90
    )
    assert left(release) == ALWAYS | PEOPLES | OPERATORS

    upgrade(release, *WITH_OPERATOR, "--set=engine.repositoryKey.existingSecret=mine")
    check_serving(release)
    assert table(release)["revision"] >= before["revision"]
    assert f"secret/{RELEASE}-engine" not in left(release)


def test_after_the_removal_that_the_page_tells_a_release_begins_anew(release: Kubernetes) -> None:
    """Although a ModelRollout is left that tells of a table which nobody has any more."""
    release.apply(rollout(OWN))

    def is_told() -> bool:
        found = release.get("modelrollout", OWN, f"--namespace={NAMESPACE}")
        return "revision" in found.get("status", {}).get("table", {})

    eventually(is_told, "the ModelRollout tells of a table")
    uninstall(release, NAMESPACE)
    commands = re.findall(r"^kubectl --namespace tidegate (delete .*)$", INSTALL_PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        release.kubectl(*shlex.split(command), f"--namespace={NAMESPACE}")
    eventually(
        lambda: left(release) <= ALWAYS | PEOPLES, "nothing of the release is left", timeout_s=90
    )

    upgrade(release, *WITH_OPERATOR)
    check_serving(release)


@pytest.fixture
def older(kube: Kubernetes, kind: None) -> Iterator[str]:
    """A namespace in which nobody acts, and a kind as an earlier chart may have brought it: without
    the member `memory`, the column Weight and the rule for steps. Afterwards it is the chart's."""
    namespace = "upgrades-kind"
    kube.kubectl("create", "namespace", namespace)
    try:
        # Not applied: that takes nothing away from what Helm, or another one, has made.
        kube.kubectl("replace", "-f", "-", stdin=json.dumps(older_kind(kube.get("crd", CRD))))
        yield namespace
    finally:
        bring_kind(kube)
        kube.kubectl("delete", "namespace", namespace)


def older_kind(definition: Any) -> Any:
    made = copy.deepcopy(definition)
    (version,) = made["spec"]["versions"]
    version["additionalPrinterColumns"] = [
        each for each in version["additionalPrinterColumns"] if each["name"] != "Weight"
    ]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["memory"]
    del spec["strategy"]["properties"]["steps"]["x-kubernetes-validations"]
    return made


def test_the_kind_is_upgraded_as_the_page_tells_and_model_rollouts_stay(
    kube: Kubernetes, older: str
) -> None:
    falling = {"strategy": {"steps": [{"weight": w, "hold": "1s"} for w in (50, 10)]}}

    def takes(**spec: Any) -> bool:
        words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        try:
            kube.kubectl(*words, stdin=json.dumps(rollout("other", older, **spec)))
        except CommandFailed:
            return False
        return True

    def columns() -> str:
        return kube.kubectl("get", "modelrollouts", f"--namespace={older}").splitlines()[0]

    kube.apply(rollout("there", older, onFailure="Pause"))
    before = kube.get("modelrollout", "there", f"--namespace={older}")
    # The API server takes a new kind up a moment after it was written.
    eventually(lambda: not takes(memory="2Gi") and takes(**falling), "it is the older kind", 60)
    eventually(lambda: "WEIGHT" not in columns(), "it is the older kind", 60)

    (command,) = re.findall(
        r"^kubectl (apply .*charts/tidegate/crds/)$", INSTALL_PAGE, re.MULTILINE
    )
    kube.kubectl(*shlex.split(command.replace("charts/tidegate", str(CHART))))

    eventually(lambda: takes(memory="2Gi"), "the new member is accepted", 60)
    eventually(lambda: not takes(**falling), "the new rule is kept", 60)
    assert not takes(memory="much")
    eventually(lambda: "WEIGHT" in columns(), "the new column is shown", 60)
    after = kube.get("modelrollout", "there", f"--namespace={older}")
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
    # And it can still be changed.
    kube.apply(rollout("there", older, onFailure="Pause", memory="2Gi"))
