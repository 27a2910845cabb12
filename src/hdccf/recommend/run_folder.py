"""A run's folder: what was trained on what, with which settings, and everything needed to go on or to answer.

run.json            format version, model, settings, seed, split's fingerprint, options
environment.json    versions and machine
split/              the three parts with their vocabularies (Parquet)
race.jsonl          where settings were chosen among candidates: each candidate at the end of each round
race/               the trainings of the candidates, until one is chosen
metrics.jsonl       a line an evaluation
checkpoint.safetensors   where training stands; resuming starts here
best.safetensors    the weights of the selected epoch
calibration.safetensors  the popularity dial and the item–item filter, where validation chose them
refit/              where it was trained once more on all events: a run of its own, whose weights answer;
                    `best.safetensors` above has not seen the held-out events, and is what is evaluated
items.parquet       attributes of items, where there are any
features.safetensors     the map from them to vectors of items without interactions
result.json         written when training has ended
profile.json        where the time of its last part went, if asked for
"""

import hashlib
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from hdccf import checkpoint
from hdccf.checkpoint import explained
from hdccf.config import Cluster as Cluster
from hdccf.config import FitOptions as FitOptions
from hdccf.config import Settings
from hdccf.data.interactions import describe
from hdccf.data.split import PARTS, Split
from hdccf.errors import ConfigError, DataError, HdccfError, RunError, one_line, without_secrets
from hdccf.evaluation.compare import FOLDER
from hdccf.evaluation.evaluation import Evaluation
from hdccf.files import atomic_directory, atomic_file, read_described, write_json
from hdccf.models import entry_named, name_of

FORMAT = "hdccf-run"
FORMAT_VERSION = 1
REFIT = "refit"
"""The folder of the second training, on all events, in that of the first."""
_LISTED = ("hdccf", "torch", "numpy", "scipy", "polars", "safetensors")


class _Config(BaseModel, extra="allow"):
    """What run.json must have."""

    model: str
    settings: dict[str, Any]
    seed: int
    split: dict[str, str]
    data: dict[str, Any]
    options: dict[str, Any]
    candidates: dict[str, dict[str, Any]] = {}
    """Settings by name, where they are chosen on validation."""
    chosen: str | None = None
    """The name of the candidate that was taken."""


class _Record(BaseModel):
    """A line of metrics.jsonl."""

    epoch: int
    loss: float
    terms: dict[str, float] = {}
    validation: dict[str, float] = {}
    diagnostics: dict[str, float] = {}
    seconds: float


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, with what its run.json says."""

    path: Path
    model: str
    settings: Settings
    seed: int
    options: FitOptions
    config: dict[str, Any]

    @classmethod
    def create(
        cls,
        path: Path,
        candidates: Mapping[str, Settings],
        split: Split,
        seed: int,
        options: FitOptions,
        about: dict[str, Any],
    ) -> "RunFolder":
        """Starts a run in a folder of its own; `about` says where the data came from.

        Of several candidates, settings by name, the first stands in run.json until one is `chosen`.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} is not empty; choose another --out, or go on with {resume_command(path)}")
        settings = next(iter(candidates.values()))
        name = name_of(settings)
        config = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            **_model_and_settings(settings),
            "candidates": {
                each: _model_and_settings(one) for each, one in candidates.items() if len(candidates) > 1
            },
            "chosen": None,
            "seed": seed,
            "split": {"method": split.method, "fingerprint": split.fingerprint},
            "data": _public(about),
            "options": options.model_dump(mode="json"),
        }
        # All or nothing: a process that is killed here leaves no folder that is in the way.
        with explained(path), atomic_directory(path, overwrite=path.exists()) as folder:
            split.save(folder / "split")
            write_json(folder / "environment.json", _environment())
            write_json(folder / "run.json", config)
        return cls(path, name, settings, seed, options, config)

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        folder = Path(path)
        config = _read_config(folder)
        try:
            config = _Config.model_validate(config, strict=True).model_dump()
            config["data"] = _public(config["data"])
            settings = entry_named(config["model"]).settings(**config["settings"])
            options = FitOptions(**config["options"])
            return cls(folder, config["model"], settings, config["seed"], options, config)
        except (ConfigError, TypeError, ValidationError) as cause:
            raise RunError(
                f"{folder}/run.json is damaged or of another hdccf ({one_line(cause)}); train again"
            ) from cause

    def split(self) -> Split:
        try:
            split = Split.load(self.path / "split")
        except DataError as cause:
            raise RunError(f"the data of run {self.path} cannot be opened ({cause}); train again") from cause
        if split.fingerprint != self.config["split"].get("fingerprint"):
            raise RunError(f"{self.path}/split is not the split that this run was trained on; train again")
        return split

    @property
    def fingerprint(self) -> str:
        """Of model, settings, seed and split; checkpoints carry it, so that edited settings are noticed."""
        parts = {key: self.config[key] for key in ("model", "settings", "seed", "split")}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def save_tensors(self, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Writes a checkpoint of this run."""
        checkpoint.save(path, tensors, {**facts, "run": self.fingerprint})

    def load_tensors(
        self, path: Path, device: torch.device | str = "cpu"
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Reads a checkpoint, and checks that it belongs to this run and its settings."""
        tensors, facts = checkpoint.load(path, device)
        if facts.pop("run", self.fingerprint) != self.fingerprint:
            raise RunError(
                f"{path} was written with other settings than {self.path}/run.json has; "
                "restore run.json, or train again"
            )
        return tensors, facts

    @property
    def candidates(self) -> dict[str, Settings]:
        """The settings that are still to be chosen from, by name; one where there is no choice left."""
        kept = self.config["candidates"]
        if not kept or self.config["chosen"]:
            return {self.model: self.settings}
        try:
            return {name: entry_named(one["model"]).settings(**one["settings"]) for name, one in kept.items()}
        except (ConfigError, KeyError, TypeError) as cause:
            raise RunError(
                f"the candidates in {self.path}/run.json are damaged ({one_line(cause)}); train again"
            ) from cause

    def of_candidate(self, name: str) -> "RunFolder":
        """The folder of a candidate's training, inside this one."""
        settings = self.candidates[name]
        place = self.path / "race" / "".join(c if c.isalnum() else "-" for c in name)
        place.mkdir(parents=True, exist_ok=True)
        config = {**self.config, **_model_and_settings(settings)}
        return replace(self, path=place, model=config["model"], settings=settings, config=config)

    def chosen(self, name: str, *, keep: bool = True) -> "RunFolder":
        """This folder with a candidate's settings, and with its training where that is to be kept.

        Whatever was done before an interruption is found done.
        """
        candidate = self.of_candidate(name)
        with explained(self.path):
            for file in candidate.path.iterdir() if keep else ():
                file.replace(self.path / file.name)
            shutil.rmtree(self.path / "race")
            config = {**candidate.config, "chosen": name}
            write_json(self.path / "run.json", config)
        return replace(candidate, path=self.path, config=config)

    @property
    def refit(self) -> Path:
        return self.path / REFIT

    @property
    def answering(self) -> "RunFolder":
        """The run whose weights answer: that of the refit once it has ended, otherwise this one."""
        return self if answering_weights(self.path) == self.best else RunFolder.open(self.refit)

    @property
    def race(self) -> Path:
        return self.path / "race.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def calibration(self) -> Path:
        return self.path / "calibration.safetensors"

    @property
    def items(self) -> Path:
        return self.path / "items.parquet"

    @property
    def features(self) -> Path:
        return self.path / "features.safetensors"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def profile(self) -> Path:
        return self.path / "profile.json"

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a line that a kill cut short is left out."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        records = []
        with explained(file):
            lines = file.read_bytes().splitlines()
        for line in lines:
            try:
                records.append(_Record.model_validate_json(line).model_dump())
            except ValidationError:
                break
        return records

    def log(self, record: dict[str, Any]) -> None:
        path = self.path / "metrics.jsonl"
        with explained(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def truncate_log(self, epoch: int) -> None:
        """Takes back the lines of epochs that will be trained again."""
        kept = [record for record in self.metrics() if record["epoch"] <= epoch]
        path = self.path / "metrics.jsonl"
        with explained(path), atomic_file(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


@contextmanager
def removed_if_it_fails(path: Path) -> Iterator[None]:
    """A training that fails before it has saved any weights leaves no folder in the way of the next one."""
    try:
        yield
    except Exception:
        if next(path.rglob("*.safetensors"), None) is None:
            shutil.rmtree(path, ignore_errors=True)
        raise


def answering_weights(folder: Path) -> Path:
    """The file of the weights that answer: those of the refit once it has ended."""
    refitted = (folder / REFIT / "result.json").exists()
    return (folder / REFIT if refitted else folder) / "best.safetensors"


def resume_command(path: Path) -> str:
    """What is typed to go on with a run."""
    return f"hdccf train --resume {shlex.quote(str(path))}"


def free_folder(root: Path, stem: str) -> Path:
    """`root/stem`, or with a number behind it where that is taken."""
    candidate, number = root / stem, 1
    while candidate.exists():
        number += 1
        candidate = root / f"{stem}-{number}"
    return candidate


def _model_and_settings(settings: Settings) -> dict[str, Any]:
    return {"model": name_of(settings), "settings": settings.model_dump(mode="json")}


def _public(about: dict[str, Any]) -> dict[str, Any]:
    """Facts about the data source, fit to be kept and shown: without passwords."""
    return {name: without_secrets(fact) if isinstance(fact, str) else fact for name, fact in about.items()}


def _read_config(folder: Path) -> dict[str, Any]:
    return read_described(
        folder / "run.json",
        "run",
        kind=FORMAT,
        version=FORMAT_VERSION,
        writer="hdccf train",
        remedy="train again",
        error=RunError,
    )


def _environment() -> dict[str, Any]:
    versions = {}
    for name in _LISTED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


MOST_RUNS = 50
"""Beside a run, the latest so many: a page with more of them says nothing."""


def settings_table(settings: Settings) -> list[dict[str, Any]]:
    """Every setting with its value, its default, whether they differ, and what it does."""
    values = settings.model_dump(mode="json")
    rows = []
    for name, field in type(settings).model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        rows.append(
            {
                "name": name,
                "value": values[name],
                "default": default,
                "changed": getattr(settings, name) != default,
                "meaning": " ".join((field.description or "").split()),
            }
        )
    return rows


def curves(records: list[dict[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """metrics.jsonl turned around: kind → name → a value for each evaluated epoch, or None."""
    flat = [_flat(record) for record in records]
    names = dict.fromkeys(name for record in flat for name in record)
    found: dict[str, dict[str, list[float | None]]] = {}
    for kind, name in names:
        found.setdefault(kind, {})[name] = [record.get((kind, name)) for record in flat]
    return found


def _flat(record: dict[str, Any]) -> dict[tuple[str, str], float]:
    flat = {("training", "loss"): record["loss"]}
    for name, value in record.get("terms", {}).items():
        flat["clipped" if name.startswith("clipped") else "training", name] = value
    for kind in ("validation", "diagnostics"):
        for name, value in record.get(kind, {}).items():
            flat[kind, name] = value
    return flat


def result_of(run: RunFolder) -> dict[str, Any] | None:
    """Best epoch and value, and how long it took; None while it is training."""
    try:
        found = json.loads(run.result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def evaluation_of(run: RunFolder, part: str = "test") -> Evaluation | None:
    """What `hdccf evaluate` kept last; None where it was never called."""
    folder = run.path / FOLDER / part
    if not folder.exists():
        return None
    try:
        return Evaluation.load(folder)
    except HdccfError:
        return None


def facts_of(run: RunFolder) -> dict[str, Any]:
    """Everything about a run that does not need its data or weights, fit for JSON."""
    records = run.metrics()
    kept = evaluation_of(run)
    return {
        "name": run.path.name,
        "model": run.model,
        "seed": run.seed,
        "source": run.config.get("data", {}),
        "split": run.config.get("split", {}),
        "epochs": [record["epoch"] for record in records],
        "seconds": [record["seconds"] for record in records],
        "curves": curves(records),
        "result": result_of(run),
        "test": None if kept is None else kept.values,
    }


def data_facts(split: Split) -> dict[str, Any]:
    """The training part in figures, and the size of all parts."""
    figures = describe(split.train, rows=0)
    return {
        **{name: value for name, value in figures.items() if name not in {"rows", "fingerprint"}},
        "parts": {name: len(split.part(name)) for name in PARTS},
    }


def runs_beside(path: Path) -> Iterator[RunFolder]:
    """The run itself, then the others in the same folder, the latest first; what is no run is passed over."""
    yield RunFolder.open(path)
    found = (folder for folder in path.parent.iterdir() if folder != path)
    others = [folder for folder in found if (folder / "run.json").is_file()]
    others.sort(key=lambda folder: (folder / "run.json").stat().st_mtime, reverse=True)
    for folder in others[: MOST_RUNS - 1]:
        try:
            yield RunFolder.open(folder)
        except HdccfError:
            continue
