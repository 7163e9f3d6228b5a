"""A roll of the real image model, how its requests are shared by version, and what becomes of a
version that turns bad in service. Each has a run of traffic of its own."""

import io
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from PIL import Image

from kubernetes import eventually
from rolls.load import MODEL, ROUTES, Watch, await_answers, begin, good, plan
from rolls.release import EXAMPLES, NAMESPACE, PROOF, Rolls, is_there, rollout, routing_at
from tidegate_engine.artefacts import artefact_path, default_cache
from tidegate_table.document import Phase, Roll
from tidegate_traffic import evidence
from tidegate_traffic.driver import Control
from tidegate_traffic.evidence import Expectation
from tidegate_traffic.outcomes import Outcome
from tidegate_traffic.report import Report
from traffic_pod import traffic

IMAGES = "image_classifier"
# Photos a second. Each costs 8 ms at a gateway and 12 ms at an engine, so that this is a third of
# two cores.
RATE = 20.0
# Requests of each step, at least, and the candidate's percentages in them.
LEAST = 2000
WEIGHTS = (25, 60)
# Both versions see the cat, and are not equally sure of it: float32 and int8 weights.
PHOTO = {"file": "cat.jpg", "label": "Egyptian cat", "scores": {"1": 0.3969, "2": 0.3799}}
PHOTOS = {
    "kind": "photo",
    "model": IMAGES,
    "versions": ["1", "2"],
    "rate": RATE,
    "connections": 8,
    "requests_per_connection": 50,
    "headers": {"tidegate-timeout": "20"},
    "timeout_s": 30,
    "photos": [PHOTO],
}
# Promised is no number; a round of the operator, the gateways' watch and the report's whole seconds
# are about three.
MOST_BEYOND_LOADING_S = 10.0

TURNS_BAD = 19
WEIGHT = 20
# For so long a version that answers wrongly may go on, at most.
FOUND_OUT_S = 10
POLL_S = 0.2


@pytest.fixture
def rolls(installed: Rolls) -> Any:
    """The release; in the end version 1 of both models serves alone again."""
    yield installed
    for model in (IMAGES, MODEL):
        installed.apply(rollout(model, 1, steps=(), bake="0s", drain="1s"))
        installed.await_settled(model, 1)


def test_a_roll_of_the_image_model_is_not_noticed(rolls: Rolls) -> None:
    hold = f"{LEAST / RATE + 6:.0f}s"
    manifest = example(steps=[(weight, hold) for weight in WEIGHTS])
    files = {"cat.jpg": photo()}
    routes = plan({"photos": PHOTOS})
    with traffic(rolls.kube, NAMESPACE, routes, files, asked_directly=True) as control:
        begin(control)
        applied_s = control.in_flight().now_s
        rolls.apply(manifest)
        loading = Loading(rolls, control)
        steps = [window(rolls, control, step) for step in range(len(WEIGHTS))]
        rolls.await_settled(IMAGES, 2)
        settled_s = control.in_flight().now_s
        await_answers(control, "engine", rolls.engines())
        report = control.stop()
    print(evidence.summary(report))
    judge(report, rolls)
    for weight, (begin_s, end_s) in zip(WEIGHTS, steps, strict=True):
        judge_share(report, weight, begin_s, end_s)
    judge_speed(report, applied_s, loading)
    last = {c.version for c in good(report) if c.second > settled_s}
    assert last == {"2"}


def test_a_version_that_turns_bad_under_traffic_is_found_out_in_ten_seconds(rolls: Rolls) -> None:
    routes = {
        name: {**ROUTES[name], "versions": ["1", str(TURNS_BAD)]} for name in ("json", "grpc")
    }
    rate = sum(route["rate"] for route in routes.values())
    with traffic(rolls.kube, NAMESPACE, plan(routes), {}, asked_directly=True) as control:
        begin(control)
        rolls.apply(rollout(MODEL, TURNS_BAD, steps=[(WEIGHT, "10m")], proof=PROOF))
        rolls.await_phase(MODEL, Phase.STEPPING)
        rolls.await_failure(MODEL, TURNS_BAD)
        rolls.await_settled(MODEL, 1)
        await_answers(control, "engine", rolls.engines())
        report = control.stop()
    print(evidence.summary(report))
    bad = [cell for cell in report.cells if cell.outcome is not Outcome.OK]
    assert {(c.outcome, c.detail, c.version) for c in bad} == {
        (Outcome.WRONG, "content", str(TURNS_BAD))
    }
    wrong = sum(cell.count for cell in bad)
    _, most = evidence.binomial_interval(int(rate * FOUND_OUT_S), WEIGHT)
    first, last = min(c.second for c in bad), max(c.second for c in bad)
    print(f"{wrong} wrong answers between second {first} and {last}, expected at most {most}")
    assert wrong <= most
    judge(report, rolls, allowed_failures=wrong)


def test_a_gateway_killed_without_the_api_server_comes_back_on_the_table_that_it_applied(
    rolls: Rolls,
) -> None:
    """What it has in flight dies with it, so the traffic comes in through the other one."""
    victim, other = rolls.gateways()
    address, container = rolls.address(victim), rolls.container(victim, "gateway")
    control_plane = rolls.cluster.node("node1")
    routes = plan(host=rolls.address(other))
    with traffic(rolls.kube, NAMESPACE, routes, {}, asked_directly=True) as control:
        begin(control)
        watch = Watch(control)
        with watch.unnoticed() as part:
            since = rolls.begin_half(MODEL, 2).since
            rolls.wait(lambda: routing_at(address).get("revision", 0) >= since, "it is applied")
            try:
                control_plane.stop("kube-apiserver")
                rolls.kill(container)
                eventually(lambda: routing_at(address) == {}, "it is gone")
                eventually(lambda: routing_at(address).get("revision") == since, "it is back")
                assert not is_there(rolls.kube)
            finally:
                control_plane.restart("kube-apiserver")
                eventually(lambda: is_there(rolls.kube), "the API server is back")
            rolls.wait(
                lambda: rolls.container(victim, "gateway").restarts > container.restarts,
                f"{victim} is known to have been started again",
            )
            rolls.wait(lambda: rolls.container(victim, "gateway").ready, f"{victim} is ready")
            rolls.let_go_on(MODEL)
            rolls.await_settled(MODEL, 2)
            part.await_answers_of(2, rolls.engines())
        watch.end()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_the_api_server_takes_the_examples(installed: Rolls, file: Any) -> None:
    words = ("apply", "--dry-run=server", "--filename", str(file), f"--namespace={NAMESPACE}")
    assert "(server dry run)" in installed.kube.kubectl(*words)


class Loading:
    """When a roll began to load its candidate, and when every engine had proven it; seconds of the
    run."""

    def __init__(self, rolls: Rolls, control: Control) -> None:
        rolls.wait(lambda: rolls.roll(IMAGES) is not None, "the roll has begun")
        self.began_s = control.in_flight().now_s
        rolls.wait(
            lambda: all(
                rolls.versions(engine, IMAGES).get("2", {}).get("proven", False)
                for engine in rolls.engines()
            ),
            "every engine has proven version 2",
        )
        self.ended_s = control.in_flight().now_s


def example(steps: Sequence[tuple[int, str]]) -> Any:
    """The ModelRollout of the documentation, with these steps."""
    manifest = yaml.safe_load((EXAMPLES / "rollout.yaml").read_text())
    manifest["metadata"]["namespace"] = NAMESPACE
    manifest["spec"]["strategy"] = {
        "steps": [{"weight": weight, "hold": hold} for weight, hold in steps],
        "bake": "5s",
        "drain": "5s",
    }
    return manifest


def photo() -> bytes:
    """A photo of the size that the model takes, so that little of the work is the gateways'."""
    content = io.BytesIO()
    with Image.open(artefact_path("chelsea.png", default_cache())) as cat:
        width, height = cat.size
        scale = 256 / min(width, height)
        size = (round(width * scale), round(height * scale))
        cat.resize(size, Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    return content.getvalue()


def window(rolls: Rolls, control: Control, step: int) -> tuple[int, int]:
    """The seconds of the run, the second one excluded, in which every gateway routed by a step."""
    found: Roll = rolls.await_phase(IMAGES, Phase.STEPPING, step=step, timeout_s=120)
    rolls.wait(
        lambda: all(rolls.routing(name).get("revision", 0) >= found.since
                    for name in rolls.gateways()),
        f"every gateway routes by step {step}",
    )  # fmt: skip
    begin_s = last_s = control.in_flight().now_s
    while True:
        now_s = control.in_flight().now_s
        if rolls.roll(IMAGES) != found:
            # What was due in the last second may have come in later.
            return math.ceil(begin_s), math.floor(last_s) - 1
        last_s = now_s
        time.sleep(POLL_S)


def judge(report: Report, rolls: Rolls, allowed_failures: int = 0) -> None:
    """Fail unless the run had no other failures than these, and every part had its share."""
    expected = Expectation(
        requests=dict.fromkeys(report.routes, LEAST // 20),
        allowed_failures=allowed_failures,
        versions={route.model: ["1"] for route in report.routes.values()},
        engines=rolls.engines(),
        gateways=rolls.gateways(),
    )
    if missing := evidence.missing(report, expected):
        pytest.fail("\n".join(missing), pytrace=False)


def judge_share(report: Report, weight: int, begin_s: int, end_s: int) -> None:
    """Fail unless the candidate had its share of the requests of a step."""
    came = evidence.answered(report, IMAGES, begin_s, end_s)
    requests, candidate = sum(came.values()), came["2"]
    low, high = evidence.binomial_interval(requests, weight)
    print(
        f"{weight} % from {begin_s} s to {end_s} s: {candidate} of {requests} requests "
        f"({100 * candidate / requests:.1f} %), expected {low} to {high}"
    )
    assert requests >= LEAST
    assert low <= candidate <= high


def judge_speed(report: Report, applied_s: float, loading: Loading) -> None:
    """Fail when the way from `kubectl apply` to the candidate's first request is a long one."""
    first_s = min(cell.second for cell in good(report) if cell.version == "2")
    load_s = loading.ended_s - loading.began_s
    beyond_s = first_s - applied_s - load_s
    print(
        f"from kubectl apply to the candidate's first request: {first_s - applied_s:.1f} s, of "
        f"which {load_s:.1f} s are loading and proving, and {beyond_s:.1f} s are the rest"
    )
    assert beyond_s <= MOST_BEYOND_LOADING_S
