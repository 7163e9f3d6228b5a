"""The loader beside a real Triton: what it has loaded, kept, proven and told, whatever happens."""

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tidegate_engine.local import EngineError, LocalEngine, LocalLoader, make_repository

pytestmark = pytest.mark.needs("engine")

PATIENCE_S = 30.0
KEY = "the-key-of-this-test"
CONFIG = """
backend: "python"
input [{name: "x", data_type: TYPE_FP32, dims: [-1]}]
output [{name: "y", data_type: TYPE_FP32, dims: [-1]}]
# It is the loader that says which versions serve.
version_policy { all { } }
"""
# What a version does is said by words in its source; what it adds tells the versions apart.
MODEL = """
import os, pathlib, time
import triton_python_backend_utils as pb_utils

GATE = {gate!r}
ADDED = {added}


class TritonPythonModel:
    def initialize(self, _args):
        while GATE and not pathlib.Path(GATE).exists():
            time.sleep(0.01)
        {at_load}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        {at_request}
        return pb_utils.InferenceResponse([pb_utils.Tensor({output!r}, x + ADDED)])
"""
ONE_AND_TWO = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


def model(
    added: float = 0.0,
    *,
    gate: Path | None = None,
    at_load: str = "pass",
    at_request: str = "pass",
    output: str = "y",
) -> str:
    return MODEL.format(
        gate=str(gate or ""), added=added, at_load=at_load, at_request=at_request, output=output
    )


CRASHING = model(at_load="os.kill(os.getppid(), 9); time.sleep(60)")


class Rig:
    """An engine with its loader, a repository to publish in, and a table to write."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        (folder / "local").mkdir()
        self.table_file = folder / "table.json"
        self.revision = 0
        self.engine = LocalEngine(repository=folder / "local", repository_key=KEY)
        self.engine.start()
        self.loader = self.make_loader()

    def make_loader(self, *arguments: str) -> LocalLoader:
        return LocalLoader(
            self.engine,
            self.source,
            self.table_file.with_name("loader.log"),
            arguments=[
                f"--table.file={self.table_file}",
                "--table.file_interval_s=0.05",
                "--triton.poll_s=0.1",
                "--proof.interval_s=0.2",
                "--repository.retry_s=0.2",
                *arguments,
            ],
        )

    def publish(self, version: str, source: str, name: str = "echo", config: str = CONFIG) -> None:
        folder = self.source / name / version
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(source)
        (self.source / name / "config.pbtxt").write_text(config)

    def want(
        self, *versions: str, weights: Mapping[str, float] | None = None, **loads: Any
    ) -> None:
        """A table that wants these versions of `echo`; the first is stable, if any has weight."""
        digests = loads.pop("digests", {})
        self.write(
            {"echo": {"stable": versions[0], "weights": weights}} if weights else {},
            {
                "echo": {
                    "config": "",
                    "versions": {each: {"digest": digests.get(each, "")} for each in versions},
                    **loads,
                }
            },
        )

    def write(self, models: Mapping[str, Any], loads: Mapping[str, Any]) -> None:
        self.revision += 1
        table = {"schema": 1, "revision": self.revision, "models": models, "loads": loads}
        written = self.table_file.with_suffix(".new")
        written.write_text(json.dumps(table))
        written.replace(self.table_file)

    def told(self, version: str, name: str = "echo") -> dict[str, Any]:
        """What the loader tells of a version, judged by the latest table; empty before that."""
        status = self.loader.status()
        if status["revision"] != self.revision:
            return {}
        found: dict[str, Any] = status["models"].get(name, {}).get("versions", {}).get(version, {})
        return found

    def wait_told(self, version: str, name: str = "echo", **wanted: Any) -> dict[str, Any]:
        def holds() -> bool:
            told = self.told(version, name)
            return all(told.get(member) == value for member, value in wanted.items())

        eventually(holds, lambda: f"wanted {wanted}, got {self.told(version, name)}")
        return self.told(version, name)

    def wait_gone(self, version: str) -> None:
        eventually(
            lambda: (
                self.loader.status()["revision"] == self.revision
                and version
                not in self.loader.status()["models"].get("echo", {}).get("versions", {})
            ),
            lambda: f"version {version} stays: {self.told(version)}",
        )

    def answers(self, version: str, name: str = "echo") -> list[float] | None:
        """What a version answers to [1, 2]; None where it does not."""
        path = f"/v2/models/{name}/versions/{version}/infer"
        status, body = self.ask("POST", path, ONE_AND_TWO)
        return json.loads(body)["outputs"][0]["data"] if status == 200 else None

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self.engine.http_address, timeout=20)) as asked:
            asked.request(method, path, json.dumps(body))
            answer = asked.getresponse()
            return answer.status, answer.read()

    def wait_stubs(self, number: int) -> list[int]:
        """The processes that run versions of `echo`, once there are so many."""
        eventually(
            lambda: len(self.engine.stub_pids("echo")) == number,
            lambda: f"wanted {number} processes, got {self.engine.stub_pids('echo')}",
        )
        return self.engine.stub_pids("echo")

    def is_ready(self) -> bool:
        try:
            self.loader.wait_ready(timeout=0)
        except EngineError:
            return False
        return True


def eventually(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    try:
        yield made
    finally:
        made.loader.kill()
        made.engine.kill()


def test_it_loads_and_proves_what_the_table_wants_and_the_version_that_stays_is_not_touched(
    rig: Rig,
) -> None:
    rig.publish("1", model(10))
    rig.publish("2", model(20))
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    stubs = rig.engine.stub_pids("echo")
    assert rig.answers("1") == [11, 12]
    assert rig.answers("2") is None
    first = rig.told("1")
    assert first["digest"].startswith("sha256:")
    assert first["bytes"] == (rig.source / "echo" / "1" / "model.py").stat().st_size
    config = rig.loader.status()["models"]["echo"]["config"]
    assert "version_policy" not in config
    assert "# It is the loader" in config

    rig.want("1", "2", weights={"1": 100}, config=config, digests={"1": first["digest"]})
    rig.wait_told("2", proven=True)
    both = rig.wait_stubs(2)
    assert set(stubs) < set(both), "version 1 was loaded anew"
    assert rig.answers("2") == [21, 22]
    rig.wait_told("2", requests=2)  # the proof and our own

    rig.want("2", weights={"2": 100}, config=config)
    rig.wait_gone("1")
    assert set(rig.wait_stubs(1)) == set(both) - set(stubs), "version 2 was loaded anew"
    eventually(
        lambda: not (rig.engine.repository / "echo" / "1").exists(), lambda: "the copy of 1 stays"
    )

    rig.write({}, {})
    rig.wait_gone("2")
    eventually(
        lambda: not (rig.engine.repository / "echo").exists(), lambda: "the model's folder stays"
    )
    rig.wait_stubs(0)
    assert rig.is_ready()


def test_nobody_without_the_key_loads_or_unloads(rig: Rig) -> None:
    rig.publish("1", model())
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    for path in ("index", "models/echo/load", "models/echo/unload"):
        assert rig.ask("POST", f"/v2/repository/{path}")[0] == 403
    assert rig.answers("1") == [1, 2]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (None, "the repository has no version 2 of the model"),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        (model(at_load="raise RuntimeError('no')"), "RuntimeError: no"),
        (model(output="z"), "output 'y': expected one, got none"),
        (model(at_request="x = x[:1]"), "output 'y': expected FP32 of shape [2], got FP32 of s"),
        (model(1), "output 'y': value 0: expected 1, got 2.0"),
        (model(at_request="os._exit(1)"), "the golden request failed"),
    ],
    ids=["missing", "import", "load", "output name", "shape", "values", "dies"],
)
def test_a_bad_candidate_fails_and_the_stable_version_goes_on(
    rig: Rig, source: str | None, error: str
) -> None:
    rig.publish("1", model())
    if source is not None:
        rig.publish("2", source)
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}]
    proof = {"request": ONE_AND_TWO, "outputs": outputs, "tolerance": 0.01}
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    stubs = rig.engine.stub_pids("echo")
    rig.want("1", "2", weights={"1": 100}, proofs={"2": proof})
    told = rig.wait_told("2", failed=True, proven=False)
    assert error in told["error"]
    assert "/" not in told["error"]
    assert rig.told("1")["proven"]
    assert rig.is_ready()
    assert rig.answers("1") == [1, 2]
    in_triton = 2 if told["loaded"] and "stub process" not in told["error"].lower() else 1
    assert set(stubs) <= set(rig.wait_stubs(in_triton)), "version 1 was loaded anew"


def test_a_version_that_the_table_drops_and_wants_again_is_fetched_and_tried_anew(rig: Rig) -> None:
    rig.publish("1", model())
    rig.publish("2", "import no_such_module\n")
    rig.want("1", "2", weights={"1": 100})
    rig.loader.start()
    rig.wait_told("2", failed=True)
    rig.want("1", weights={"1": 100})
    rig.wait_gone("2")
    (rig.source / "echo" / "2" / "model.py").write_text(model(5))
    rig.want("1", "2", weights={"1": 100})
    rig.wait_told("2", proven=True, failed=False, error="")
    assert rig.answers("2") == [6, 7]


def test_files_with_another_digest_and_a_candidate_with_another_configuration_are_refused(
    rig: Rig,
) -> None:
    rig.publish("1", model())
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    rig.publish("2", model(2))
    wrong = f"sha256:{'0' * 64}"
    rig.want("1", "2", weights={"1": 100}, digests={"2": wrong})
    assert wrong in rig.wait_told("2", failed=True, fetched=False)["error"]
    rig.want("1", weights={"1": 100})
    rig.wait_gone("2")
    rig.publish("3", model(3), config=CONFIG + "max_batch_size: 4\n")
    rig.want("1", "3", weights={"1": 100})
    assert "its configuration" in rig.wait_told("3", failed=True, loaded=False)["error"]
    assert rig.answers("1") == [1, 2]


def test_after_a_restart_of_triton_all_is_loaded_and_proven_again_stable_first(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2))
    rig.want("1", "2", weights={"1": 50, "2": 50})
    rig.loader.start()
    rig.loader.wait_ready()
    for _ in range(3):
        old = set(rig.engine.stub_pids())
        rig.engine.restart()
        assert not old & set(rig.wait_stubs(2))
        rig.loader.wait_ready()
        assert rig.told("1")["proven"]
        rig.wait_told("2", proven=True)
        assert (rig.answers("1"), rig.answers("2")) == ([2, 3], [3, 4])
    assert not rig.told("2")["failed"]
    orders = [
        (line["versions"], line["error"])
        for line in map(json.loads, rig.loader.log_path.read_text().splitlines())
        if line["message"] == "Triton was told"
    ]
    assert orders == [("1", ""), ("1, 2", "")] * 4


def test_a_loader_that_restarts_leaves_what_is_loaded_and_proves_it_again(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2))
    rig.want("1", "2", weights={"1": 50, "2": 50})
    rig.loader.start()
    rig.loader.wait_ready()
    digest = rig.told("2")["digest"]
    stubs = rig.engine.stub_pids()
    rig.loader.kill()
    left = rig.engine.repository / ".loader" / "incoming" / "echo~3"
    left.mkdir()
    rig.loader.start()
    rig.loader.wait_ready()
    assert rig.wait_told("2", proven=True)["digest"] == digest
    assert rig.engine.stub_pids() == stubs
    assert not left.exists()
    # Both at once: nothing of what the loader remembers is true any more.
    rig.loader.kill()
    rig.engine.kill()
    rig.loader.start()
    assert not rig.is_ready()
    rig.engine.start()
    rig.loader.wait_ready()
    rig.wait_told("2", proven=True)
    assert rig.answers("2") == [3, 4]


def test_what_the_table_dropped_while_the_loader_was_away_leaves(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2))
    rig.want("1", "2", weights={"1": 50, "2": 50})
    rig.loader.start()
    rig.loader.wait_ready()
    rig.loader.kill()
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.wait_gone("2")
    assert rig.answers("1") == [2, 3]


def test_a_load_that_takes_longer_than_the_loader_waits_ends_well(rig: Rig, tmp_path: Path) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2, gate=tmp_path / "gate"))
    rig.publish("1", model(3), name="other")
    rig.want("1", weights={"1": 100})
    rig.loader = rig.make_loader("--triton.load_timeout_s=0.3")
    rig.loader.start()
    rig.loader.wait_ready()
    one = {"versions": {"1": {"digest": ""}}}
    both = {"versions": {"1": {"digest": ""}, "2": {"digest": ""}}}
    rig.write({"echo": {"stable": "1"}}, {"echo": both})
    log = rig.loader.log_path
    eventually(lambda: "Triton did not answer" in log.read_text(), lambda: "the load has ended")
    asked = rig.told("1")["requests"]
    # Meanwhile stable is proven again and again, and another model comes in.
    rig.write({"echo": {"stable": "1"}, "other": {"stable": "1"}}, {"echo": both, "other": one})
    rig.wait_told("1", name="other", proven=True)
    eventually(lambda: rig.told("1").get("requests", 0) > asked + 2, lambda: "no further proofs")
    assert not rig.told("2")["loaded"]
    assert not rig.told("2")["failed"]
    (tmp_path / "gate").touch()
    rig.wait_told("2", proven=True)
    assert rig.answers("2") == [3, 4]


def test_a_candidate_that_crashes_triton_fails_for_good_and_the_stable_version_comes_back(
    rig: Rig,
) -> None:
    rig.publish("1", model(1))
    rig.publish("2", CRASHING)
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    rig.want("1", "2", weights={"1": 100})
    for _ in range(2):
        eventually(lambda: not rig.engine.running, lambda: "Triton does not crash")
        # As Kubernetes starts the container again.
        rig.engine.restart()
        rig.loader.wait_ready()
        assert rig.answers("1") == [2, 3]
    told = rig.wait_told("2", failed=True, loaded=False)
    assert told["error"] == "Triton ended 2 times while it was being loaded or got requests"
    rig.loader.restart()
    rig.loader.wait_ready()
    rig.wait_told("2", failed=True, error=told["error"])
    rig.engine.restart()
    rig.loader.wait_ready()
    rig.wait_told("2", failed=True, error=told["error"])
    assert rig.answers("1") == [2, 3]


def test_a_version_that_answers_wrongly_later_is_found_and_well_again(
    rig: Rig, tmp_path: Path
) -> None:
    spoiled = tmp_path / "spoiled"
    rig.publish("1", model(1))
    rig.publish("2", model(2, at_request=f"x = x + pathlib.Path({str(spoiled)!r}).exists()"))
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2], "data": [3, 4]}]
    proofs = {"2": {"request": ONE_AND_TWO, "outputs": outputs, "tolerance": 0}}
    rig.want("1", "2", weights={"1": 90, "2": 10}, proofs=proofs)
    rig.loader.start()
    rig.loader.wait_ready()
    rig.wait_told("2", proven=True)
    spoiled.touch()
    told = rig.wait_told("2", proven=False, failed=True, loaded=True)
    assert told["error"] == "output 'y': value 0: expected 3, got 4.0"
    assert rig.is_ready(), "a failed candidate must not make its engine unready"
    spoiled.unlink()
    rig.wait_told("2", proven=True, failed=False, error="")


def test_a_candidate_that_hangs_is_found_while_stable_answers_and_well_again(
    rig: Rig, tmp_path: Path
) -> None:
    hung = tmp_path / "hung"
    rig.publish("1", model(1))
    rig.publish("2", model(2, at_request=f"while os.path.exists({str(hung)!r}): time.sleep(0.01)"))
    rig.want("1", "2", weights={"1": 90, "2": 10})
    rig.loader = rig.make_loader("--proof.timeout_s=0.5", "--proof.silent_s=2")
    rig.loader.start()
    rig.loader.wait_ready()
    rig.wait_told("2", proven=True)
    hung.touch()
    told = rig.wait_told("2", proven=False, failed=True, loaded=True)
    assert told["error"] == "no answer to its golden request for 2 s, while version 1 answers"
    assert rig.told("1")["proven"]
    assert rig.is_ready()
    hung.unlink()
    rig.wait_told("2", proven=True, failed=False, error="")


def test_a_candidate_that_kills_triton_by_a_request_fails_after_the_second_time(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2, at_request="x.sum() == 13 and os.kill(os.getppid(), 9)"))
    roll = {"from": "1", "to": "2", "phase": "Stepping", "step": 0, "since": 1}
    rig.want("1", "2", weights={"1": 90, "2": 10}, roll=roll)
    rig.loader.start()
    poison = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [13]}]}
    for _ in range(2):
        rig.loader.wait_ready()
        rig.wait_told("2", proven=True)
        with suppress(OSError, http.client.HTTPException):
            rig.ask("POST", "/v2/models/echo/versions/2/infer", poison)
        eventually(lambda: not rig.engine.running, lambda: "Triton does not crash")
        rig.engine.restart()
    rig.loader.wait_ready()
    told = rig.wait_told("2", failed=True, loaded=False)
    assert told["error"] == "Triton ended 2 times while it was being loaded or got requests"
    assert rig.answers("1") == [2, 3]


def test_stable_comes_back_while_a_candidate_is_still_being_fetched(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2))
    # A file that cannot be read to its end until somebody has opened it for writing.
    pipe = rig.source / "echo" / "2" / "weights"
    os.mkfifo(pipe)
    rig.want("1", "2", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    incoming = rig.engine.repository / ".loader" / "incoming" / "echo~2"
    eventually(incoming.exists, lambda: "version 2 is not fetched")
    rig.engine.restart()
    rig.loader.wait_ready()
    assert rig.answers("1") == [2, 3]
    assert not rig.told("2")["fetched"]
    pipe.open("wb").close()
    rig.wait_told("2", proven=True)
    assert rig.answers("2") == [3, 4]


@pytest.mark.parametrize("stable_refuses", [False, True])
def test_a_candidate_that_refuses_zeros_is_measured_by_the_version_that_serves(
    rig: Rig, stable_refuses: bool
) -> None:
    refusing = model(1, at_request="assert x.any(), 'zeros are of no use'")
    rig.publish("1", refusing if stable_refuses else model(1))
    rig.publish("2", refusing)
    rig.want("1", "2", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    if stable_refuses:
        rig.wait_told("2", proven=True)
    else:
        told = rig.wait_told("2", failed=True, proven=False, loaded=True)
        assert told["error"].startswith("zeros failed, which version 1 answers: ")
        assert "zeros are of no use" in told["error"]
    assert rig.told("1")["proven"]
    assert rig.answers("2") == [2, 3]


def test_a_version_without_weight_is_proven_once_and_then_left_alone(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.publish("2", model(2))
    rig.want("1", "2", weights={"1": 100, "2": 0})
    rig.loader.start()
    rig.wait_told("2", proven=True, requests=1)
    asked = rig.told("1")["requests"]
    eventually(lambda: rig.told("1")["requests"] > asked + 3, lambda: "no further proofs of 1")
    assert rig.told("2")["requests"] == 1


def test_a_stable_version_that_cannot_be_loaded_is_tried_until_it_can(rig: Rig) -> None:
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.wait_told("1", failed=True, fetched=False)
    assert not rig.is_ready()
    rig.publish("1", model(1))
    rig.loader.wait_ready()
    assert rig.answers("1") == [2, 3]


def test_versions_are_linked_where_the_repository_is_to_be_read_in_place(rig: Rig) -> None:
    rig.publish("1", model(1))
    rig.want("1", weights={"1": 100})
    rig.loader = rig.make_loader("--repository.fetch=link")
    rig.loader.start()
    rig.loader.wait_ready()
    place = rig.engine.repository / "echo" / "1"
    assert place.is_symlink()
    stubs = rig.engine.stub_pids()
    assert rig.answers("1") == [2, 3]
    rig.publish("2", model(2))
    rig.want("2", weights={"2": 100})
    rig.wait_told("2", proven=True)
    rig.wait_gone("1")
    assert rig.answers("2") == [3, 4]
    assert not set(stubs) & set(rig.engine.stub_pids())
    assert (rig.source / "echo" / "1" / "model.py").exists()
    eventually(lambda: not place.is_symlink(), lambda: "the link stays")


def test_the_projects_own_models_are_proven_with_zeros(rig: Rig) -> None:
    wanted = {"image_classifier": ("1", "2"), "identity": ("1",), "paced": ("1", "2")}
    make_repository(rig.source, [*wanted])
    rig.write(
        {name: {"stable": "1"} for name in wanted},
        {
            name: {"config": "", "versions": {each: {"digest": ""} for each in versions}}
            for name, versions in wanted.items()
        },
    )
    rig.loader.start()
    rig.loader.wait_ready()
    for name, versions in wanted.items():
        for version in versions:
            rig.wait_told(version, name, proven=True)
    # The files beside the configuration came along.
    assert (rig.engine.repository / "image_classifier" / "labels.txt").exists()


def test_it_leaves_when_told_and_what_is_loaded_stays(rig: Rig) -> None:
    rig.publish("1", model())
    rig.want("1", weights={"1": 100})
    rig.loader.start()
    rig.loader.wait_ready()
    assert rig.loader.stop() == 0
    assert rig.answers("1") == [1, 2]
