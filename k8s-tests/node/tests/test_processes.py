"""Real processes: kept running, found by their mark, and ended; and what `down` leaves alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node import machine, processes, supervisor
from node.cluster import Cluster
from node.errors import ClusterError
from node.layout import Layout
from node.processes import Process
from node.waiting import until

LOOP = """
import sys, time
from pathlib import Path
from node import supervisor
folder, end = Path(sys.argv[1]), Path(sys.argv[2])
components = {}
while not end.exists() or components:
    supervisor.look(folder, components)
    time.sleep(0.02)
    supervisor.reap(components)
"""


def eventually(condition: Callable[[], object]) -> None:
    until(condition, 20, lambda: "this has not come true within 20 s")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of components that a supervisor looks after."""
    components, end = tmp_path / "components", tmp_path / "end"
    components.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, str(components), str(end)], env=environment
    ) as process:
        yield components
        for file in components.iterdir():
            file.unlink()
        end.touch()
        assert process.wait(20) == 0


def write_component(folder: Path, pids: Path) -> None:
    script = f'echo $$ "$WORD" >> {pids}; exec sleep 600'
    content = {
        "command": ["sh", "-c", script],
        "environment": {"WORD": "given"},
        "log": str(folder.parent / "log"),
    }
    (folder / "sleeper.new").write_text(json.dumps(content))
    (folder / "sleeper.new").rename(folder / "sleeper.json")


def started(pids: Path) -> list[int]:
    return [int(line.split()[0]) for line in pids.read_text().splitlines()] if pids.exists() else []


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_component_runs_comes_back_stops_and_goes(folder: Path) -> None:
    pids = folder.parent / "pids"
    write_component(folder, pids)
    eventually(lambda: len(started(pids)) == 1)
    assert pids.read_text().split()[1] == "given"

    os.kill(started(pids)[0], signal.SIGKILL)
    eventually(lambda: len(started(pids)) == 2)

    os.kill(started(pids)[1], signal.SIGSTOP)
    (folder / "sleeper.stopped").touch()
    eventually(lambda: is_gone(started(pids)[1]))
    (folder / "sleeper.stopped").unlink()
    eventually(lambda: len(started(pids)) == 3)

    (folder / "sleeper.json").unlink()
    eventually(lambda: is_gone(started(pids)[2]))


def test_a_component_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    component = supervisor.Component("x", ["/no/such/program"], {}, str(tmp_path / "log"))
    component.start()
    assert component.pid is None
    component.start()  # within the second of rest: nothing happens, nothing raises
    assert component.pid is None


def test_only_what_carries_the_mark_of_this_cluster_is_ended(tmp_path: Path) -> None:
    ours, other = Layout(tmp_path / "ours"), Layout(tmp_path / "other")
    sleep = ["sleep", "600"]
    with (
        subprocess.Popen(sleep, env=processes.environment(ours, "node1")) as marked,
        subprocess.Popen(sleep, env=processes.environment(other, "node1")) as foreign,
    ):
        try:
            eventually(lambda: [p.pid for p in processes.with_role(ours, "node1")] == [marked.pid])
            reaper = _reap_later(marked)
            processes.end_all(ours)
            assert foreign.poll() is None
            assert reaper() == -signal.SIGKILL
        finally:
            foreign.kill()


def _reap_later(process: subprocess.Popen[bytes]) -> Callable[[], int]:
    return lambda: process.wait(20)


def test_descendants_are_found_through_all_generations() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, parent, False, str(pid), {})

    family = [process(2, 1), process(3, 2), process(4, 3), process(5, 1)]
    assert sorted(each.pid for each in processes.below(2, family)) == [3, 4]


def test_until_gives_up_with_the_sentence() -> None:
    begin = time.monotonic()
    with pytest.raises(ClusterError, match=r"^it never comes$"):
        until(lambda: None, 0.1, lambda: "it never comes")
    assert time.monotonic() - begin >= 0.1


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of a clone of its own, of which something was left."""
    # Nothing of what these tests make needs root.
    monkeypatch.setattr(machine, "check_basics", lambda: None)
    made = Cluster(tmp_path / "clone", lambda _: None)
    made.layout.logs.mkdir(parents=True)
    (made.layout.logs / "node1.log").write_text("said\n")
    return made


def test_down_removes_the_folders_it_made_unless_others_use_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    empty, used = tmp_path / "machine" / "empty", tmp_path / "machine" / "used"
    recorded = [tmp_path / "machine", empty, used, tmp_path / "never-made"]
    cluster.layout.made_folders.write_text("".join(f"{path}\n" for path in recorded))
    for path in (empty, used):
        path.mkdir(parents=True)
    (used / "someone's").touch()
    cluster.down()
    assert not empty.exists()
    assert (used / "someone's").exists()
    assert not cluster.layout.state.exists()


def test_down_kills_what_an_interrupted_up_left_without_a_record(cluster: Cluster) -> None:
    log = cluster.layout.logs / "switch.log"
    processes.start(cluster.layout, "switch", ("sleep", "600"), log)
    eventually(lambda: processes.with_role(cluster.layout, "switch"))
    cluster.down()
    assert not processes.with_role(cluster.layout, "switch")
    assert not cluster.layout.state.exists()


def test_down_can_keep_the_logs_and_be_run_twice(cluster: Cluster) -> None:
    cluster.layout.made_folders.touch()
    cluster.down(keep_logs=True)
    assert [path.name for path in cluster.layout.state.iterdir()] == ["logs"]
    cluster.down(keep_logs=True)
    assert (cluster.layout.logs / "node1.log").exists()
    cluster.down()
    assert not cluster.layout.state.exists()


def test_operations_on_a_cluster_that_is_not_up_say_so(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="The test cluster is not up: `make cluster`"):
        cluster.kill("node2")
