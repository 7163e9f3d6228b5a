"""One release at a time: more would share the cores of the machine, and slow each other down."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

T = TypeVar("T")


class Stage:
    """Has one release installed, and takes it away when another one is wanted.

    Args:
        stack: holds what is installed; whoever closes it takes the last one away.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._name = ""
        self._shown: Any = None

    def shows(self, name: str, install: Callable[[], AbstractContextManager[T]]) -> T:
        """What that release's context gave: entered now, or earlier if no other one was since."""
        if name != self._name:
            self._name = ""
            self._stack.close()
            self._shown = self._stack.enter_context(install())
            self._name = name
        shown: T = self._shown
        return shown
