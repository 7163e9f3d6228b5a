"""A routing table on real engines: requests follow its weights, and a change of it fails none."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tidegate_gateway.local import LocalGateway
from tidegate_traffic import Control, Expectation, Report
from tidegate_traffic.outcomes import Outcome

from .conftest import Engines
from .steady import plan, prove, steady_traffic, wait_seconds, write_table

pytestmark = pytest.mark.needs("engine")

# One in so many runs may find a share beyond its interval by chance.
CHANCE = 1e-9
# Requests to `paced` whose versions are counted.
ENOUGH = 200
KEYS = [f"client {number}" for number in range(25)]


def test_weights_pins_and_sticky_keys_follow_the_table_and_its_changes(
    gateway_to: Callable[..., LocalGateway], engines: Engines, tmp_path: Path
) -> None:
    path = tmp_path / "table.json"
    write_table(path, 1, {"1": 75, "2": 25})
    gateway = gateway_to(engines, f"--routing.table={path}")
    with (
        steady_traffic(plan(gateway, delay_ms=20), tmp_path, engines) as control,
        httpx.Client(base_url=gateway.http_url) as client,
    ):
        control.wait_for(
            lambda report: versions_of(report).total() >= ENOUGH, "requests enough for shares"
        )
        changing_s = control.in_flight().now_s
        assert pinned_codes(client) == {"1": 200, "2": 200, "3": 404}
        before = {key: version_for(client, key) for key in KEYS}
        assert before == {key: version_for(client, key) for key in KEYS}
        assert set(before.values()) == {"1", "2"}

        write_table(path, 2, {"1": 0, "2": 100})
        applied_s = wait_in_use(control, gateway, 2)
        assert pinned_codes(client) == {"1": 404, "2": 200, "3": 404}
        assert {version_for(client, key) for key in KEYS} == {"2"}
        wait_seconds(control, 1)
        report = control.stop()
    prove(report, Expectation(requests={"json": ENOUGH // 2, "grpc": ENOUGH // 2, "echo": 10},
                              versions={"paced": ["1", "2"]},
                              engines=[engine.grpc_address for engine in engines]))  # fmt: skip
    shares = versions_of(report, before_s=changing_s)
    least, most = interval(shares.total(), 0.25)
    assert least <= shares["2"] <= most, shares
    assert set(versions_of(report, since_s=applied_s)) == {"2"}


def wait_in_use(control: Control, gateway: LocalGateway, revision: int) -> float:
    """Wait until no request of an earlier revision is left; returns the run's second."""
    said: dict[str, Any] = {}

    def is_in_use(_: Report) -> bool:
        said.update(httpx.get(f"{gateway.admin_url}/routing").json())
        return bool(said["oldestInUse"]["paced"] == revision)

    control.wait_for(is_in_use, f"revision {revision} is the oldest in use")
    assert said["revision"] == revision
    assert said["table"]["models"]["paced"]["weights"] == {"1": 0, "2": 100}
    return control.in_flight().now_s


def versions_of(report: Report, since_s: float = 0.0, before_s: float = math.inf) -> Counter[str]:
    """Good answers of `paced` by version, to requests due in whole seconds of [since, before)."""
    counts = Counter[str]()
    for cell in report.cells:
        due = since_s <= cell.second and cell.second + 1 <= before_s
        if cell.outcome is Outcome.OK and cell.model == "paced" and due:
            counts[cell.version] += cell.count
    return counts


def infer(client: httpx.Client, path: str, **headers: str) -> httpx.Response:
    one = {"name": "input", "datatype": "FP32", "shape": [1], "data": [1.0]}
    return client.post(f"/v2/models/{path}/infer", json={"inputs": [one]}, headers=headers)


def pinned_codes(client: httpx.Client) -> dict[str, int]:
    """What comes of a request to each version; a good answer is of that version."""
    codes = {}
    for version in ("1", "2", "3"):
        answer = infer(client, f"metronome/versions/{version}")
        codes[version] = answer.status_code
        if answer.status_code == 200:
            assert answer.json()["model_version"] == version
    return codes


def version_for(client: httpx.Client, key: str) -> str:
    answer = infer(client, "paced", **{"tidegate-sticky-key": key})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model_version"])


def interval(count: int, share: float) -> tuple[int, int]:
    """What a binomial of `count` draws leaves with a chance below CHANCE on either side."""
    chances = [
        math.comb(count, hits) * share**hits * (1 - share) ** (count - hits)
        for hits in range(count + 1)
    ]
    least = next(k for k in range(count + 1) if math.fsum(chances[: k + 1]) > CHANCE)
    most = next(k for k in range(count, -1, -1) if math.fsum(chances[k:]) > CHANCE)
    return least, most
