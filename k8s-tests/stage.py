"""One release at a time: more would share the cores of the machine, and slow each other down."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Stage:
    """Has one release installed, and takes it away when another one is wanted, or at the end."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._name = ""
        self._shown: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def shows(self, name: str, install: Callable[[], AbstractContextManager[T]]) -> T:
        """What that release's context gave: entered now, or earlier if no other one was since."""
        if name != self._name:
            self._name = ""
            self._stack.close()
            self._shown = self._stack.enter_context(install())
            self._name = name
        shown: T = self._shown
        return shown
