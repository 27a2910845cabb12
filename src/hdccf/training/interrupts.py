"""Ctrl-C that waits for the step to end, so that what is saved is whole."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interruptible:
    """True once Ctrl-C was pressed; a second one stops at once. Outside the main thread nothing is caught."""

    def __init__(self) -> None:
        self._pressed = False
        self._before: Any = None

    def __bool__(self) -> bool:
        return self._pressed

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            raise KeyboardInterrupt
        self._pressed = True
