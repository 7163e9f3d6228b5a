"""How a test drives a run: `LocalTraffic` as a child process, `Control` wherever it runs.

    with LocalTraffic(plan, directory) as traffic:
        with traffic.control.fault("the gateway is deleted"):
            ...
        report = traffic.stop()

In a cluster, through a forwarded port or through `kubectl exec`, which needs no port:

    control = Control.at("http://127.0.0.1:18090")
    control = Control.through(["kubectl", "exec", "traffic", "--",
                               "python3", "-m", "tidegate_traffic", "ask"])
"""

import ctypes
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidegate_traffic.errors import ControlError, TrafficError
from tidegate_traffic.report import Report

# Question → the JSON object that comes. Raises ControlError.
Ask = Callable[["Question"], Mapping[str, Any]]

# Where `ask` looks for a run, unless told otherwise.
PORT = 8090

_ASK_S = 10.0
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Question:
    """A question or an order, as the control port and `ask` on the command line take it.

    Attributes:
        words: for the command line.
        timeout_s: seconds to wait for the answer.
    """

    words: tuple[str, ...]
    method: str
    path: str
    timeout_s: float = _ASK_S


# Word on the command line → method and path; a {} is the argument after the word.
QUESTIONS = {
    "start": ("POST", "/start"),
    "in-flight": ("GET", "/in-flight"),
    "report": ("GET", "/report"),
    "begin-fault": ("POST", "/faults/{}"),
    "end-fault": ("POST", "/faults/{}/end"),
    "stop": ("POST", "/stop"),
}


def question(*words: str, timeout_s: float = _ASK_S) -> Question:
    """The question that `words` are, such as "begin-fault", "kill".

    Raises:
        ControlError: there is no such question, or a name is missing or too much.
    """
    word, *arguments = words
    if word not in QUESTIONS:
        raise ControlError(f"expected one of {', '.join(QUESTIONS)}, got {word!r}")
    method, path = QUESTIONS[word]
    if len(arguments) != path.count("{}"):
        expected = "the fault's name" if "{}" in path else "nothing"
        raise ControlError(f"{word}: expected {expected} after it, got {arguments}")
    quoted = [urllib.parse.quote(argument, safe="") for argument in arguments]
    return Question(words, method, path.format(*quoted), timeout_s)


def ask_url(url: str, asked: Question) -> Mapping[str, Any]:
    """Ask the control port at `url`.

    Raises:
        ControlError: it refuses, or does not answer in time.
    """
    request = urllib.request.Request(url + asked.path, method=asked.method)  # noqa: S310 - http
    # A proxy of the environment is not for this.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=asked.timeout_s) as answer:
            return _object(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise ControlError(f"{asked.words[0]}: {error.read().decode()}") from None
    except (OSError, http.client.HTTPException) as error:
        raise ControlError(f"{asked.words[0]}: no answer from {url}: {error}") from None


def ask_through(command: Sequence[str], asked: Question) -> Mapping[str, Any]:
    """Ask with `command` and the question's words after it.

    Raises:
        ControlError: it fails, or does not end in time.
    """
    try:
        ended = subprocess.run(  # noqa: S603 - the caller's own command
            [*command, *asked.words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=asked.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ControlError(
            f"{asked.words[0]}: no answer through {command[0]} in {asked.timeout_s:g} s"
        ) from None
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace").strip()
        raise ControlError(f"{asked.words[0]}: {said}")
    return _object(ended.stdout)


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ControlError(f"expected a JSON object, got {content[:80]!r}")
    return document


@dataclass(frozen=True)
class InFlight:
    """The moment: seconds since the run's start, and requests in flight. Which engine has them is
    known when they have been answered: see `Control.fault`."""

    state: str
    now_s: float
    in_flight: int
    by_route: Mapping[str, int]


class Control:
    """A running generator, asked by `ask`."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @classmethod
    def at(cls, url: str) -> Self:
        """The one whose control port is at `url`."""
        return cls(lambda asked: ask_url(url, asked))

    @classmethod
    def through(cls, command: Sequence[str]) -> Self:
        """The one that `command` (… `tidegate_traffic ask`) asks."""
        return cls(lambda asked: ask_through(command, asked))

    def start(self) -> None:
        """Let it begin."""
        self._ask(question("start"))

    def in_flight(self) -> InFlight:
        """How it stands now."""
        return InFlight(**self._ask(question("in-flight")))

    def report(self, timeout_s: float = _ASK_S) -> Report:
        """The report so far."""
        return Report.from_document(self._ask(question("report", timeout_s=timeout_s)))

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Do the fault within: the report then tells what it found in flight, and where.

        Keep it short: a request that ends well within does not count.
        """
        self._ask(question("begin-fault", name))
        yield
        self._ask(question("end-fault", name))

    def wait_in_flight(self, least: int, timeout_s: float = 30.0) -> InFlight:
        """Wait until `least` requests are in flight.

        Raises:
            ControlError: they are not in time.
        """
        deadline = time.monotonic() + timeout_s
        while (now := self.in_flight()).in_flight < least:
            if time.monotonic() > deadline:
                raise ControlError(
                    f"expected {least} requests in flight within {timeout_s:g} s, got {now}"
                )
            time.sleep(_POLL_S)
        return now

    def wait_for(
        self,
        fulfilled: Callable[[Report], bool],
        what: str,
        timeout_s: float = 60.0,
        *,
        pause_s: float = _POLL_S,
    ) -> Report:
        """Wait until the report so far is `fulfilled`, and return it.

        Args:
            what: what is waited for, in words.
            pause_s: seconds between two looks; the report of a long run is large, and making it
                holds the generator up.

        Raises:
            ControlError: it is not in time.
        """
        deadline = time.monotonic() + timeout_s
        while not fulfilled(report := self.report()):
            if time.monotonic() > deadline:
                raise ControlError(
                    f"not within {timeout_s:g} s: {what} (state {report.state}, {report.ok} ok, "
                    f"{report.failed} failed)"
                )
            time.sleep(pause_s)
        return report

    def stop(self, timeout_s: float = 60.0) -> Report:
        """End the run, wait for what is in flight, and return the last report."""
        return Report.from_document(self._ask(question("stop", timeout_s=timeout_s)))


class LocalTraffic:
    """A generator as a child process; a context manager that starts it and ends it.

    Args:
        plan: see `plan`; files that it names are looked for in `directory`.
        directory: where its plan and its log (`traffic.log`) go.
        arguments: further ones of `tidegate_traffic run`, such as `--wait-for-start`.
    """

    def __init__(
        self, plan: Mapping[str, Any], directory: Path, arguments: Sequence[str] = ()
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

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

    @property
    def log_path(self) -> Path:
        """What it says: its progress, and tables at the end."""
        return self._directory / "traffic.log"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().pid

    @property
    def url(self) -> str:
        """Its control port."""
        return self._url

    @property
    def control(self) -> Control:
        """How to talk to it."""
        return Control.at(self._url)

    def start(self, timeout_s: float = 30.0) -> None:
        """Start it and wait until its control port answers.

        Must be called from a thread that lives as long as the run: the kernel ends it with the
        thread that made it.

        Raises:
            TrafficError: it ended instead, or the time is up.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        plan_path = self._directory / "plan.json"
        plan_path.write_text(json.dumps(self._plan))
        command = [sys.executable, "-m", "tidegate_traffic", "run", str(plan_path)]
        command += ["--control-port=0", *self._arguments]
        parent = os.getpid()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _end_with(parent),  # noqa: PLW1509 - calls prctl alone
            )
        deadline = time.monotonic() + timeout_s
        while not (found := re.search(r"^control: (\S+)\n", self.log_path.read_text(), re.M)):
            if self._process.poll() is not None:
                raise TrafficError(f"the generator ended at its start: {self.log_path.read_text()}")
            if time.monotonic() > deadline:
                self.kill()
                raise TrafficError(f"the generator does not listen after {timeout_s:g} s")
            time.sleep(_POLL_S)
        self._url = found.group(1)

    def stop(self, timeout_s: float = 60.0) -> Report:
        """End the run, wait until the process has gone, and return the last report."""
        report = self.control.stop(timeout_s)
        self.wait(timeout_s)
        return report

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until the process has ended, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: it is still there after `timeout_s`.
        """
        return self._running().wait(timeout_s)

    def pause(self) -> None:
        """Hold the generator itself up (SIGSTOP)."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise TrafficError("the generator has not been started")
        return self._process


def _end_with(parent: int) -> None:
    """In the child: be killed when the parent goes, also when it has gone already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
