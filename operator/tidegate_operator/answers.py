"""The members of a JSON object that a pod has answered, read strictly."""

from collections.abc import Mapping
from typing import Any

from tidegate_process.asking import NoAnswer


def whole(document: Mapping[str, Any], name: str) -> int:
    """A whole number from 0 in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    # type() and not isinstance(): a bool is an int to Python.
    if type(found) is not int or found < 0:
        raise NoAnswer(f"{name}: expected a whole number from 0, got {found!r:.64}")
    return found


def text(document: Mapping[str, Any], name: str) -> str:
    """A text in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    if not isinstance(found, str):
        raise NoAnswer(f"{name}: expected a text, got {found!r:.64}")
    return found


def is_said(document: Mapping[str, Any], name: str) -> bool:
    """A yes or no in an answer.

    Raises:
        NoAnswer: it is missing, or something else.
    """
    found = document.get(name)
    if type(found) is not bool:
        raise NoAnswer(f"{name}: expected true or false, got {found!r:.64}")
    return found


def members(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object in an answer; an empty one where it is missing or null.

    Raises:
        NoAnswer: it is something else.
    """
    found = document.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NoAnswer(f"{name}: expected an object, got {found!r:.64}")
    return found
