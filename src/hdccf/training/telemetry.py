"""Telemetry of a training: TensorBoard and MLflow curves, seconds by stage, and the false-negative rate."""

import json
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch

from hdccf.config import Settings
from hdccf.console import note
from hdccf.data.batches import Block, InBatch, SampledBatch
from hdccf.data.interactions import Interactions
from hdccf.data.synthetic import World
from hdccf.errors import ConfigError, one_line
from hdccf.files import write_json
from hdccf.losses.diagnostics import false_negative_rates
from hdccf.recommend.run_folder import RunFolder

STAGES = ("sampling", "scores and loss", "backward", "optimizer", "evaluation", "checkpoints")
OTHER = "other"

Clock = Callable[[str], AbstractContextManager[Any]]
"""Opened around each piece of a stage, by the stage's name; `nullcontext` measures nothing."""


class Stopwatch:
    """A clock that adds up each stage's seconds and counts its pieces."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.pieces = dict.fromkeys(STAGES, 0)
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start
            self.pieces[stage] += 1

    def report(self) -> dict[str, Any]:
        """Seconds, share of the whole and number of pieces of each stage; `other` is what is in none."""
        total = time.perf_counter() - self._started
        seconds = {**self.seconds, OTHER: max(total - sum(self.seconds.values()), 0.0)}
        stages = {
            stage: {
                "seconds": round(taken, 4),
                "share": round(taken / total, 4),
                "pieces": self.pieces.get(stage),
            }
            for stage, taken in seconds.items()
        }
        return {"seconds": round(total, 4), "stages": stages}


def table(report: dict[str, Any]) -> str:
    """A report for people, the longest stage first."""
    lines = ["where the time went", f"{'':<20} {'seconds':>9} {'share':>7} {'pieces':>8} {'ms each':>9}"]
    stages = sorted(report["stages"].items(), key=lambda stage: -stage[1]["seconds"])
    for name, stage in stages:
        line = f"{name:<20} {stage['seconds']:>9.2f} {stage['share']:>7.1%}"
        if stage["pieces"]:
            line += f" {stage['pieces']:>8,} {1e3 * stage['seconds'] / stage['pieces']:>9.2f}"
        lines.append(line)
    return "\n".join([*lines, f"{'all':<20} {report['seconds']:>9.2f}"])


class Writer(Protocol):
    """Keeps curves for a program that shows them."""

    def write(self, curves: Mapping[str, float], epoch: int) -> None: ...

    def close(self, *, failed: bool) -> None: ...


class Board:
    """Takes the records of metrics.jsonl and gives them to writers as curves."""

    def __init__(self, *writers: Writer) -> None:
        self._writers = writers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close(failed=kind is not None)

    def add(self, record: dict[str, Any]) -> None:
        for writer in self._writers:
            writer.write(curves_of(record), record["epoch"])


def curves_of(record: dict[str, Any]) -> dict[str, float]:
    """The values of a record of metrics.jsonl by the names of their curves."""
    curves = {"loss": record["loss"]}
    for group in ("terms", "validation", "diagnostics"):
        curves.update({f"{group}/{name}": value for name, value in record[group].items()})
    return curves


class TensorBoard:
    """Event files in the folder of a run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as cause:
            raise ConfigError(
                "TensorBoard is not installed; install it with: pip install 'hdccf[tensorboard]'"
            ) from cause
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, curves: Mapping[str, float], epoch: int) -> None:
        for name, value in curves.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self, *, failed: bool) -> None:
        self._writer.close()


_MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class MLflow:
    """A run of an MLflow tracking server or database, in the experiment `hdccf`.

    Parameters
    ----------
    uri
        Such as http://host:5000 or sqlite:///mlflow.db.
    """

    def __init__(self, uri: str) -> None:
        # MLflow reports its use to its makers, and waits minutes for a server, unless it is told not to.
        for name, value in _MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._run, self._lost = "", False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of SQLAlchemy, about MLflow's use of it
                from mlflow.tracking import MlflowClient

                self._client: Any = MlflowClient(tracking_uri=uri)
                self._experiment = self._client.get_experiment_by_name("hdccf")
        except ImportError as cause:
            raise ConfigError(
                "MLflow is not installed; install it with: pip install 'hdccf[mlflow]'"
            ) from cause
        except Exception as cause:
            raise ConfigError(
                f"MLflow at {uri} cannot be used ({one_line(cause)[:300]}); give the address of a tracking "
                "server, or a database such as sqlite:///mlflow.db"
            ) from cause

    def begin(self, run: RunFolder | None, settings: Settings) -> None:
        """Starts a run there, with what was trained so far, or goes on in the one that mlflow.json names.

        Parameters
        ----------
        run
            The folder of the training; None for a model that is not kept.
        settings
            The model's settings, its parameters there.
        """
        kept = None if run is None else run.path / "mlflow.json"
        if kept is not None and kept.exists():
            self._run = str(json.loads(kept.read_text(encoding="utf-8"))["run"])
            return
        name = settings.model if run is None else run.path.name
        experiment = self._experiment
        number = experiment.experiment_id if experiment else self._do("create_experiment", "hdccf")
        started = self._do("create_run", number, run_name=name)
        if started is None:
            return
        self._run = started.info.run_id
        for setting, value in {"model": settings.model, **settings.model_dump(mode="json")}.items():
            self._do("log_param", self._run, setting, value)
        if run is not None and kept is not None:
            self._do("set_tag", self._run, "folder", str(run.path.resolve()))
            write_json(kept, {"run": self._run})
            for record in run.metrics():
                self.write(curves_of(record), record["epoch"])

    def write(self, curves: Mapping[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        # MLflow's names have no @.
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in curves.items()}
        metrics = [Metric(name, value, now, epoch) for name, value in named.items()]
        self._do("log_batch", self._run, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        self._do("set_terminated", self._run, status="FAILED" if failed else "FINISHED")

    def _do(self, what: str, *given: Any, **values: Any) -> Any:
        """A server that is lost in the middle does not end a training."""
        if self._lost:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return getattr(self._client, what)(*given, **values)
        except Exception as cause:
            self._lost = True
            note(f"MLflow cannot be reached any more ({one_line(cause)[:200]}); training goes on without it")
            return None


def false_negative_rate(world: World, train: Interactions) -> Callable[[Any, Any], dict[str, float]]:
    """A diagnosis for `fit` on data from `world`, which may have lost users and items in preparation."""
    world_users, world_items = world.codes_of(train)

    def diagnose(model: Any, batch: InBatch | SampledBatch | Block) -> dict[str, float]:
        with torch.no_grad():
            negatives = model.item_negatives(batch)
        if negatives is None:
            return {}
        users = world_users[batch.users.numpy()]
        if isinstance(batch, SampledBatch):
            items = world_items[batch.negative_items.numpy()]
            rows = np.broadcast_to(users[:, None], items.shape)
            liked = world.liked_pairs(rows.ravel(), items.ravel()).reshape(items.shape)
        else:
            columns = batch.item_negatives.columns if isinstance(batch, InBatch) else batch.columns
            items = world_items if columns is None else world_items[columns.numpy()]
            liked = world.liked(users, items)
        return false_negative_rates(negatives, torch.from_numpy(liked), model.settings.temperature)

    return diagnose
