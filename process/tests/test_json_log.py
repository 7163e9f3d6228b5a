"""The log: one JSON object a line, whatever is logged."""

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate_process import logs
from tidegate_process.logs import JsonFormatter


def line(message: object = "hello", *args: object, **changes: Any) -> str:
    record = logging.LogRecord("some.logger", logging.WARNING, __file__, 1, message, args, None)
    vars(record).update(changes)
    return JsonFormatter().format(record)


def parsed(text: str) -> dict[str, Any]:
    assert "\n" not in text
    assert "\r" not in text
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def test_a_line_says_when_how_bad_who_and_what() -> None:
    created = datetime(2024, 6, 7, 8, 9, 10, 123456, UTC).timestamp()

    assert parsed(line("%s of %d", "one", 2, created=created)) == {
        "time": "2024-06-07T08:09:10.123+00:00",
        "level": "warning",
        "logger": "some.logger",
        "message": "one of 2",
    }


def test_what_a_line_is_about_is_asked_with_each() -> None:
    about: dict[str, Any] = {"request_id": "abc"}
    formatter = JsonFormatter(context=lambda: about)
    record = logging.LogRecord("some.logger", logging.WARNING, __file__, 1, "hello", (), None)

    assert list(parsed(formatter.format(record)).items())[3:] == [
        *(("message", "hello"), ("request_id", "abc")),
    ]
    about.clear()
    assert "request_id" not in parsed(formatter.format(record))


def test_fields_of_a_framework_can_be_hidden() -> None:
    record = logging.LogRecord("some.logger", logging.WARNING, __file__, 1, "hello", (), None)
    vars(record).update(k8s_ref={"whole": "object"}, color_message="h", model="m")
    document = parsed(JsonFormatter(hidden=["k8s_ref"]).format(record))

    assert document["model"] == "m"
    assert not {"k8s_ref", "color_message"} & document.keys()


def test_extras_are_fields() -> None:
    document = parsed(line(http_port=8080, model="m", share=0.5, nested={"a": [1, None]}))

    assert document["http_port"] == 8080
    assert document["nested"] == {"a": [1, None]}
    assert not {"args", "msg", "levelno", "pathname", "thread"} & document.keys()


@pytest.mark.parametrize(
    ("odd", "written"),
    [
        ("two\nlines\r\n\u2028", "two\nlines\r\n\u2028"),
        ('{"level": "forged"}', '{"level": "forged"}'),
        ("\x00\x1b[31m", "\x00\x1b[31m"),
        (b"bytes", "b'bytes'"),
        (Path("folder"), "folder"),
        ({1}, "{1}"),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        (np.float32(0.5), "0.5"),
        (np.arange(2), "[0 1]"),
        (float("nan"), None),
        (ValueError("no"), "no"),
        ("\udcff", "\udcff"),
        (2**70, 2**70),
        ([2**64, "\ud800", b"x"], [2**64, "\ud800", "b'x'"]),
    ],
    ids=repr,
)
def test_odd_extras_stay_on_their_line(odd: object, written: object) -> None:
    assert parsed(line(odd=odd))["odd"] == written


@settings(max_examples=70, deadline=None, database=None)
@given(
    st.text(st.characters(exclude_categories=[])),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
)
def test_any_record_is_one_line_of_json(message: str, extra: object) -> None:
    document = parsed(line("%s", message, extra=extra))

    assert document["message"] == message
    assert document["level"] == "warning"


def test_an_exception_is_a_field() -> None:
    try:
        int("two\nlines")
    except ValueError:
        document = parsed(line("it failed", exc_info=sys.exc_info()))

    assert document["message"] == "it failed"
    assert document["exception"].startswith("Traceback (most recent call last):\n")
    assert document["exception"].endswith(r"base 10: 'two\nlines'" + "\n")


# The process's log


CHATTY = "a.library.that.says.much"


@pytest.fixture
def _log_as_before() -> Iterator[None]:
    """Takes back what `configure` does to the whole process."""
    root, chatty = logging.getLogger(), logging.getLogger(CHATTY)
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    chatty.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_log_as_before")
def test_every_log_goes_to_standard_error_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", chatty=[CHATTY], context=lambda: {"about": "x"}, hidden=["secret"])
    logging.getLogger("ours").info("answered", extra={"status": "200", "secret": "s"})
    logging.getLogger("ours").debug("too fine")
    logging.getLogger("of.others").warning("theirs")
    logging.getLogger(CHATTY).info("started, as ours says too")
    logging.getLogger(CHATTY).error("it fails")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("two\nlines", UserWarning, stacklevel=1)

    out, err = capsys.readouterr()
    documents = [parsed(text) for text in err.splitlines()]

    assert out == ""
    assert [document["message"] for document in documents[:3]] == ["answered", "theirs", "it fails"]
    assert (documents[0]["status"], documents[0]["about"]) == ("200", "x")
    assert "secret" not in documents[0]
    assert len(documents) == 4
    assert documents[3]["logger"] == "py.warnings"
    assert "UserWarning: two\nlines" in documents[3]["message"]


@pytest.mark.usefixtures("_log_as_before")
def test_only_what_is_severe_enough_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("error", chatty=[CHATTY])
    logging.getLogger("a").warning("no")
    logging.getLogger(CHATTY).warning("no")
    logging.getLogger("a").error("yes")

    assert [parsed(text)["message"] for text in capsys.readouterr().err.splitlines()] == ["yes"]
