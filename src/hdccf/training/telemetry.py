"""TensorBoard, for those who have it; otherwise nothing."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hdccf.errors import ConfigError


class Board:
    """Takes the records of metrics.jsonl and shows them as curves."""

    def __init__(self, writer: Any = None) -> None:
        self._writer = writer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, record: dict[str, Any]) -> None:
        if self._writer is None:
            return
        curves = {"loss": record["loss"]}
        for group in ("terms", "validation", "diagnostics"):
            curves.update({f"{group}/{name}": value for name, value in record[group].items()})
        for name, value in curves.items():
            self._writer.add_scalar(name, value, record["epoch"])


def open_tensorboard(folder: Path | None) -> Board:
    """A board that writes into `folder`, or one that does nothing where there is none."""
    if folder is None:
        return Board()
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as cause:
        raise ConfigError(
            "TensorBoard is not installed; install it with: pip install 'hdccf[tensorboard]'"
        ) from cause
    return Board(SummaryWriter(str(folder / "tensorboard")))
