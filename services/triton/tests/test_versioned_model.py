"""The versions of the model `versioned` on a real Triton: well ones, and those that are bad."""

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidegate_engine.artefacts import assemble, default_cache
from tidegate_engine.local import LocalEngine

pytestmark = pytest.mark.needs("engine")

# A bound on each call, and no speed: far more than any takes.
LIMIT_S = 60
MODEL = "versioned"
# Requests until a fault that does not begin with the first one.
LATER = 30

Answer = tuple[int, Any]


class Versions:
    """An engine that serves version 1, and others beside it."""

    def __init__(self, engine: LocalEngine, repository: Path) -> None:
        self.engine = engine
        self._config = repository / MODEL / "config.pbtxt"
        self._text = self._config.read_text()

    def load(self, version: int) -> Answer:
        """Load it beside version 1."""
        self.serve(f"[ 1, {version} ]")
        return self._post(f"/v2/repository/models/{MODEL}/load", {})

    def serve(self, versions: str) -> None:
        """Say which versions the next load brings."""
        self._config.write_text(self._text.replace("[ 1 ]", versions))

    def ask(self, version: int, *values: float) -> Answer:
        """Status and outputs by name."""
        status, document = self.infer(version, *values)
        outputs = {each["name"]: each["data"] for each in document.get("outputs", ())}
        return status, outputs or document

    def infer(self, version: int, *values: float) -> Answer:
        """Status and the whole answer."""
        tensor = {"name": "input", "datatype": "FP32", "shape": [len(values)], "data": values}
        path = f"/v2/models/{MODEL}/versions/{version}/infer"
        return self._post(path, {"inputs": [tensor]})

    def _post(self, path: str, body: object) -> Answer:
        with closing(http.client.HTTPConnection(self.engine.http_address, timeout=LIMIT_S)) as sent:
            sent.request("POST", path, json.dumps(body))
            answer = sent.getresponse()
            return answer.status, json.loads(answer.read() or "{}")


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    repository = tmp_path_factory.mktemp("repository")
    assemble(repository, [MODEL], cache=default_cache())
    with LocalEngine([MODEL], repository=repository) as engine:
        yield Versions(engine, repository)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_version_that_is_well_says_which_it_is(versions: Versions, version: int) -> None:
    assert versions.load(version)[0] == http.client.OK
    for each in (1, version):
        assert versions.ask(each, 1, 2) == (200, {"output": [1, 2], "version": [each]})


@pytest.mark.parametrize(
    ("version", "said"), [(11, "raised on purpose, at load"), (12, "is not healthy")]
)
def test_a_version_that_does_not_load_leaves_the_other_one_alone(
    versions: Versions, version: int, said: str
) -> None:
    status, document = versions.load(version)
    assert status == http.client.BAD_REQUEST
    assert said in document["error"]
    assert versions.ask(1, 5) == (200, {"output": [5], "version": [1]})


def test_a_version_takes_triton_with_it(versions: Versions) -> None:
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        versions.load(13)
    assert f"status -{signal.SIGBUS.value}" in versions.engine.wait()
    versions.serve("[ 1 ]")
    versions.engine.restart()
    assert versions.ask(1, 5) == (200, {"output": [5], "version": [1]})


def test_a_version_that_wants_another_input_answers_nobody(versions: Versions) -> None:
    assert versions.load(14)[0] == http.client.OK
    assert versions.ask(14, 1)[0] == http.client.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    ("version", "outputs"),
    [
        (15, {"version": [15]}),  # Triton drops an output that its configuration has not
        (17, {"output": [2, 3], "version": [17]}),
    ],
)
def test_a_version_that_answers_otherwise(
    versions: Versions, version: int, outputs: dict[str, Any]
) -> None:
    assert versions.load(version)[0] == http.client.OK
    assert versions.ask(version, 1, 2) == (200, outputs)


def test_a_version_answers_in_another_shape(versions: Versions) -> None:
    assert versions.load(16)[0] == http.client.OK
    _, document = versions.infer(16, 1, 2)
    assert [each["shape"] for each in document["outputs"]] == [[1, 2], [1]]


def test_a_version_dies_when_it_has_served_for_a_while(versions: Versions) -> None:
    assert versions.load(18)[0] == http.client.OK
    good = [versions.ask(18, 7)[0] for _ in range(LATER - 1)]
    assert set(good) == {http.client.OK}
    status, document = versions.ask(18, 7)
    assert (status, "is not healthy" in document["error"]) == (500, True)
    assert versions.ask(1, 5) == (200, {"output": [5], "version": [1]})


def test_a_version_answers_wrongly_when_it_has_served_for_a_while(versions: Versions) -> None:
    assert versions.load(19)[0] == http.client.OK
    answers = [versions.ask(19, 7)[1]["output"] for _ in range(LATER)]
    assert answers == [[7]] * (LATER - 1) + [[8]]
