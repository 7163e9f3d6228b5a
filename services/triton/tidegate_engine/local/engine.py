"""One Triton server as a local process."""

import contextlib
import http.client
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidegate_engine.local import environment as environments
from tidegate_engine.local import guard, guarded, leftovers, ports
from tidegate_engine.local.errors import EngineError
from tidegate_engine.local.log import Log

# Where the clone keeps the records and, unless told otherwise, the directories of its engines.
RUNS = environments.ROOT / ".run" / "engines"
# Starts, when another process takes a port between our look at it and Triton's.
PORT_TRIES = 5
POLL_SECONDS = 0.02
# One question to a Triton that may hang.
ASK_SECONDS = 2.0
# Where the model `paced` looks, in Triton's working directory.
PACE = "paced.factor"


class LocalEngine:
    """A Triton server with its Python models, on 127.0.0.1; a context manager that starts it.

    It stops with the process that made it, however that ends: Triton and its backend processes go,
    and so do their shared memory regions (see `guard`). Not safe for use by several threads.

    Leaving the `with` block kills it, which loses nothing since an engine keeps no state and takes
    milliseconds, where a graceful stop takes Triton two seconds; call `stop` to let requests end.

    Args:
        models: names of the models to load at start, each with the versions that its config says.
            Others can be loaded later through Triton's repository API (explicit model control).
        repository: a Triton model repository. None: one is made for this engine, with `models` in
            it, from the project's own models and their artefacts.
        repository_key: who loads and unloads models has to send it as the header `tidegate-key`.
            Empty: everybody may.
        grpc_port, http_port, metrics_port: 0 means one that is free, kept over restarts.
        directory: where the log and the files that Triton runs from go. None: a new one in the
            clone's `.run/engines`, of which the latest few are kept.
        environment: the engine environment. None: the one that the variable
            TIDEGATE_ENGINE_ENVIRONMENT names, else the clone's `.venvs/engine`.
        triton_args: further arguments for `tritonserver`; they win over ours.
    """

    def __init__(  # noqa: PLR0913  keywords, each with a default
        self,
        models: Sequence[str] = (),
        *,
        repository: Path | None = None,
        repository_key: str = "",
        grpc_port: int = 0,
        http_port: int = 0,
        metrics_port: int = 0,
        directory: Path | None = None,
        environment: Path | None = None,
        triton_args: Sequence[str] = (),
    ) -> None:
        self._prefix = f"tidegate-{uuid.uuid4().hex[:12]}"
        self._models = tuple(models)
        self._repository = repository
        self.repository_key = repository_key
        self._wanted_ports = ports.Ports(grpc_port, http_port, metrics_port)
        self._directory = (directory or RUNS / self._prefix).absolute()
        self._environment_path = environments.location(environment)
        self._environment: environments.Environment | None = None  # None: nothing is prepared yet
        self._triton_args = tuple(triton_args)
        self._log = Log(self._directory / "triton.log")
        self._ports: ports.Ports | None = None
        self._triton: guarded.GuardedTriton | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    # --- Life ---------------------------------------------------------------------------------

    def start(self, timeout: float = 120.0) -> None:
        """Start Triton and wait until it serves with its models loaded.

        Args:
            timeout: longest wait in seconds, not counting the making of model artefacts.

        Raises:
            EngineError: it runs already; the engine environment is missing or unfit; a given port
                is taken; a model does not load (with what Triton said); the time is up.
        """
        if self.running:
            raise EngineError(f"The engine runs already (process {self.pid}).")
        leftovers.clear_dead(RUNS)
        if self._environment is None:
            self._environment = self._prepare()
        deadline = time.monotonic() + timeout
        for _ in range(PORT_TRIES):
            # Ports once chosen are kept: clients of a restarted engine find it where it was.
            chosen = ports.settle(self._ports or self._wanted_ports)
            try:
                self._triton = self._launch(self._environment, chosen)
                self._wait_serving(self._triton, chosen, deadline)
            except BaseException as error:
                self.kill()
                if isinstance(error, EngineError) and self._log.port_was_taken():
                    continue
                raise
            self._ports = chosen
            return
        raise EngineError(f"Other processes took the engine's ports {PORT_TRIES} times in a row.")

    def stop(self, grace: float = 10.0) -> None:
        """Stop Triton gracefully: requests in flight end, models are unloaded; then all is gone.

        A paused engine is resumed first. After `grace` seconds it is killed. Stopping an engine
        that has ended is no error.
        """
        if self._triton is not None:
            self._triton.order(f"stop {grace}")
            self._triton.ending(grace + 2 * guard.KILL_SECONDS)

    def kill(self) -> None:
        """Kill Triton (SIGKILL) and wait until its backend processes and regions are gone, too."""
        if self._triton is not None:
            self._triton.order("kill")
            self._triton.ending(2 * guard.KILL_SECONDS)

    def restart(self, timeout: float = 120.0) -> None:
        """Kill Triton if it runs, and start it again on the same ports. Raises as `start` does."""
        self.kill()
        self.start(timeout)

    def pause(self) -> None:
        """Stop Triton in its tracks (SIGSTOP): connections stay open, nothing answers.

        Its backend processes go on.
        """
        self._signal("pause", paused=True)

    def resume(self) -> None:
        """Let a paused Triton go on (SIGCONT)."""
        self._signal("resume", paused=False)

    def slow_down(self, factor: float) -> None:
        """Have the model `paced` take `factor` times as long from now on, also over restarts.

        Requests that are in it are held to it too. 1 is its normal pace; other models keep theirs.
        """
        written = self._directory / f"{PACE}.written"
        written.write_text(str(factor))
        written.replace(self._directory / PACE)

    def wait(self) -> str:
        """Wait until Triton has ended, and tell how, as a sentence.

        Raises:
            EngineError: it was never started.
        """
        if self._triton is None:
            raise EngineError("The engine does not run; start it first.")
        return self._triton.ending()

    # --- What it is ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether Triton has been started and has not ended; a paused one counts."""
        return self._triton is not None and self._triton.running

    @property
    def pid(self) -> int:
        """Process id of Triton.

        Raises:
            EngineError: it does not run.
        """
        return self._running_triton().pid

    @property
    def grpc_address(self) -> str:
        """`host:port` of KServe v2 over gRPC. Raises EngineError before the first start."""
        return f"{ports.HOST}:{self._settled_ports().grpc}"

    @property
    def http_address(self) -> str:
        """`host:port` of KServe v2 over HTTP. Raises EngineError before the first start."""
        return f"{ports.HOST}:{self._settled_ports().http}"

    @property
    def metrics_address(self) -> str:
        """`host:port` of Triton's Prometheus metrics. Raises EngineError before the first start."""
        return f"{ports.HOST}:{self._settled_ports().metrics}"

    @property
    def repository(self) -> Path:
        """The model repository that it loads from."""
        return (self._repository or self._directory / "models").absolute()

    @property
    def log_path(self) -> Path:
        """The file that Triton and its models write to; it stays, and restarts append to it."""
        return self._log.path

    @property
    def shared_memory_prefix(self) -> str:
        """What the names of the engine's regions in /dev/shm begin with; no other engine's do."""
        return self._prefix

    def stub_pids(self, model: str | None = None) -> list[int]:
        """Process ids of the living backend processes, one a model instance, oldest first.

        Args:
            model: only those of this model; None: of all.
        """
        found = []
        for pid in sorted(leftovers.processes(self._prefix)):
            with contextlib.suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if Path(os.fsdecode(arguments[0])).name != "triton_python_backend_stub":
                    continue
                # models/NAME/VERSION/model.py
                if model is None or Path(os.fsdecode(arguments[1])).parts[-3] == model:
                    found.append(pid)
        return found

    def wait_ready(self, model: str, version: str = "", timeout: float = 30.0) -> None:
        """Wait until Triton says that a model serves.

        Args:
            model: its name.
            version: its version; empty: any.
            timeout: longest wait in seconds.

        Raises:
            EngineError: it does not serve in time, or Triton has ended; with what Triton said.
        """
        path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/ready"
        name = f"Model {model!r}" + (f" version {version}" if version else "")
        deadline = time.monotonic() + timeout
        while True:
            status, body = _ask(self._settled_ports().http, path)
            if status == http.client.OK:
                return
            if self._triton is not None and not self._triton.running:
                raise EngineError(self._triton.ending())
            if time.monotonic() > deadline:
                said = f"Triton says {body.decode(errors='replace')}" if body else "no answer"
                raise EngineError(
                    f"{name} is not ready after {timeout:g} s ({said}). Log: {self.log_path}"
                )
            time.sleep(POLL_SECONDS)

    # --- Inside -------------------------------------------------------------------------------

    def _prepare(self) -> environments.Environment:
        environment = environments.probe(self._environment_path)
        if sentence := environments.misfit(environment):
            raise EngineError(sentence)
        self._directory.mkdir(parents=True, exist_ok=True)
        leftovers.claim(self._directory)
        environments.assemble(environment, self._directory)
        self._provide_repository(environment)
        return environment

    def _provide_repository(self, environment: environments.Environment) -> None:
        link = self._directory / "models"
        if self._repository is not None:
            if not self._repository.is_dir():
                raise EngineError(f"There is no model repository at {self._repository}.")
            link.unlink(missing_ok=True)
            link.symlink_to(self._repository.absolute())
        elif self._models:
            _assemble(environment, link, self._models)
        else:
            link.mkdir(exist_ok=True)

    def _launch(
        self, environment: environments.Environment, chosen: ports.Ports
    ) -> guarded.GuardedTriton:
        return guarded.GuardedTriton(
            self._command(environment, chosen),
            prefix=self._prefix,
            records=RUNS,
            directory=self._directory,
            variables=environments.variables(environment, os.environ),
            log=self._log,
        )

    def _command(self, environment: environments.Environment, chosen: ports.Ports) -> list[str]:
        return [
            str(environment.triton / "bin" / "tritonserver"),
            f"--id={self._prefix}",
            "--model-repository=models",
            f"--backend-directory={environments.BACKENDS}",
            f"--backend-config=python,shm-region-prefix-name={self._prefix}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self._models),
            "--disable-auto-complete-config",
            # Strict, it would be unready while any version loads and for good after one failed.
            "--strict-readiness=false",
            f"--grpc-address={ports.HOST}",
            f"--grpc-port={chosen.grpc}",
            f"--http-address={ports.HOST}",
            f"--http-port={chosen.http}",
            f"--metrics-address={ports.HOST}",
            f"--metrics-port={chosen.metrics}",
            # The gateway pings each 10 s, also on a quiet connection; Triton's default allows it
            # each 300 s and closes the connection of a client that does it more often.
            "--grpc-http2-min-recv-ping-interval-without-data=5000",
            "--grpc-keepalive-permit-without-calls=1",
            *self._restrictions(),
            *self._triton_args,
        ]

    def _restrictions(self) -> list[str]:
        if not self.repository_key:
            return []
        restricted = f"model-repository:tidegate-key={self.repository_key}"
        return [f"--http-restricted-api={restricted}", f"--grpc-restricted-protocol={restricted}"]

    def _wait_serving(
        self, triton: guarded.GuardedTriton, chosen: ports.Ports, deadline: float
    ) -> None:
        """Wait until it is this Triton, by its id, that answers; its models are loaded by then."""
        while True:
            _, metadata = _ask(chosen.http, "/v2")
            # Metrics are the last to be served.
            if self._prefix.encode() in metadata and _ask(chosen.metrics, "/metrics")[0]:
                return
            if not triton.running:
                raise EngineError(triton.ending())
            if time.monotonic() > deadline:
                raise EngineError(f"Triton does not serve in time. Log: {self.log_path}")
            time.sleep(POLL_SECONDS)

    def _signal(self, order: str, *, paused: bool) -> None:
        triton = self._running_triton()
        triton.order(order)
        deadline = time.monotonic() + ASK_SECONDS
        while _is_stopped(triton.pid) != paused:
            if time.monotonic() > deadline or not triton.running:
                raise EngineError(f"Triton (process {triton.pid}) did not {order}.")
            time.sleep(POLL_SECONDS)

    def _running_triton(self) -> guarded.GuardedTriton:
        if self._triton is None or not self._triton.running:
            raise EngineError("The engine does not run; start it first.")
        return self._triton

    def _settled_ports(self) -> ports.Ports:
        if self._ports is None:
            raise EngineError("The engine has no addresses before its first start.")
        return self._ports


def make_repository(
    repository: Path, models: Sequence[str], environment: Path | None = None
) -> None:
    """Put the project's own models of these names into a model repository, artefacts and all.

    What the building says is passed on to our standard error as it comes: the first time takes
    long.

    Args:
        repository: the folder; made when it is missing, and other models in it are left alone.
        models: their names.
        environment: as `LocalEngine` has it.

    Raises:
        EngineError: the engine environment is missing, or a model cannot be built.
    """
    _assemble(environments.probe(environments.location(environment)), repository, models)


def _assemble(
    environment: environments.Environment, repository: Path, models: Sequence[str]
) -> None:
    command = [str(environment.path / "bin" / "python"), "-m", "tidegate_engine.artefacts"]
    command += ["--repository", str(repository)]
    for model in models:
        command += ["--model", model]
    last = ""
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None  # noqa: S101  PIPE was asked for
        for line in process.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode != 0:
        raise EngineError(f"The models {', '.join(models)} cannot be provided: {last}")


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _ask(port: int, path: str) -> tuple[int, bytes]:
    """The answer to a GET: status and body; status 0 when there is none."""
    connection = http.client.HTTPConnection(ports.HOST, port, timeout=ASK_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
