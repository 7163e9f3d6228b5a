"""The gateway's log: which request a line is about, and who else writes into it."""

import json
import logging
from collections.abc import Iterator

import pytest

from tidegate_gateway import logs
from tidegate_gateway.logs import REQUEST_ID

QUIET = ("uvicorn.access", "uvicorn.error", "httpx2")


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Takes back what `configure` does to the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_the_request_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    token = REQUEST_ID.set("abc")
    try:
        logging.getLogger("tidegate_gateway.access").info("answered")
    finally:
        REQUEST_ID.reset(token)
    logging.getLogger("tidegate_gateway").info("gone")

    answered, gone = map(json.loads, capsys.readouterr().err.splitlines())
    assert answered["request_id"] == "abc"
    assert "request_id" not in gone


def test_servers_and_clients_of_others_say_only_what_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("info")
    logging.getLogger("grpc").warning("of grpc")
    logging.getLogger("uvicorn.error").info("started, as ours says too")
    logging.getLogger("uvicorn.error").error("of uvicorn")
    logging.getLogger("uvicorn.access").info("GET / 200, as ours says too")
    logging.getLogger("httpx2").info("GET /status 200")

    said = [json.loads(text)["message"] for text in capsys.readouterr().err.splitlines()]
    assert said == ["of grpc", "of uvicorn"]
