"""What is kept of a cluster when a test fails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired

from installation import ROOT
from kubernetes import CommandFailed, Kubernetes

_FOLDER = ROOT / ".run" / "e2e"
_LINES = 20000


def keep(kube: Kubernetes, test: str, files: Mapping[str, Sequence[str]]) -> Path:
    """Write what kubectl says, or why it says nothing; returns the folder of that test.

    Args:
        files: the name of a file → the words of the command.
    """
    folder = _FOLDER / "".join(c if c.isalnum() or c in "-_" else "_" for c in test)
    folder.mkdir(parents=True, exist_ok=True)
    for file, words in files.items():
        try:
            said = kube.kubectl(*words)
        except (CommandFailed, TimeoutExpired) as error:
            said = str(error)
        (folder / file).write_text(said)
    return folder


def log_words(namespace: str, selector: str, *more: str) -> tuple[str, ...]:
    """What the pods that a selector finds have logged, with the name of the pod in each line."""
    return (
        "logs",
        f"--namespace={namespace}",
        f"--selector={selector}",
        "--prefix",
        f"--tail={_LINES}",
        *more,
    )
