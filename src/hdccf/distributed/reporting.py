"""What reaches the driver's standard error: the training's own lines, and which worker went wrong."""

import io
import re
import sys
from typing import Any, TextIO

from ray.train import UserCallback

_OF_A_PROCESS = re.compile(r"^(?:\x1b\[\d+m)?\([^)]*pid=[^)]*\)(?:\x1b\[0m)? ?(.*)$", re.DOTALL)
_OWN = ("epoch ", "note: ", "hdccf: ")


class Voices(io.TextIOBase):
    """Lets the training's own lines through as one process would write them, and drops Ray's about itself.

    Ray marks the lines that its processes write; what it says of its own parts is in its log files.
    """

    def __init__(self, real: TextIO) -> None:
        self.real = real
        self._line_is_done = False

    def write(self, text: str) -> int:
        if text == "\n" and self._line_is_done:
            self._line_is_done = False  # print gives the end of a line by itself
            return 1
        found = _OF_A_PROCESS.match(text)
        if found is None:
            self.real.write(text)
        elif found[1].startswith(_OWN):
            self.real.write(found[1].rstrip("\n") + "\n")
        self._line_is_done = found is not None and not text.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self.real.flush()


class Reporter(UserCallback):  # type: ignore[misc]
    """Runs in Ray's controller, whose words reach the driver's standard error."""

    def __init__(self, workers: int, timeout: float) -> None:
        self.workers, self.timeout = workers, timeout

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        sys.stderr.write(f"hdccf: {describe(worker_exceptions, self.workers, self.timeout)}\n")
        sys.stderr.flush()


def describe(failures: dict[int, Exception], workers: int, timeout: float) -> str:
    """Which worker died or hangs, as far as the others can tell."""
    texts = {rank: " ".join(str(failure).split()) for rank, failure in failures.items()}
    silent = sorted(set(range(workers)) - set(failures))
    dead = [rank for rank, text in texts.items() if "died" in text or "ActorDiedError" in text]
    if dead:
        what = f"worker {dead[0]} of {workers} died"
    elif silent and any("imed out" in text for text in texts.values()):
        named = ", ".join(map(str, silent))
        what = f"worker {named} of {workers} hangs: it has not answered the others for {timeout:g} s"
    else:
        rank = min(texts)
        what = f"worker {rank} of {workers} failed: {texts[rank][:300]}"
    return f"{what}; going on from the last checkpoint"
