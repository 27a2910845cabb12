"""The journal of finished runs: a JSON record each, found again by what decides its result."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from hdccf.config import Settings
from hdccf.evaluation.evaluation import Evaluation
from hdccf.models import name_of

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One training and what is asked of it afterwards."""

    dataset: str
    split: str
    """The fingerprint."""
    settings: Settings
    seed: int
    protocols: tuple[str, ...]
    metrics: tuple[str, ...]
    retrain: bool = False
    given: bool = False
    """Also tested with the validation items known, as SASRec's published figures are."""
    densities: bool = False
    """Also how its scores are distributed."""

    @property
    def model(self) -> str:
        return name_of(self.settings)

    def facts(self) -> Record:
        """Everything that decides the result. What is only asked in addition is no part of it."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "split": self.split,
            "seed": self.seed,
            "settings": self.settings.model_dump(mode="json"),
            "protocols": list(self.protocols),
            "metrics": list(self.metrics),
            "retrain": self.retrain,
        }

    @property
    def key(self) -> str:
        """A name for its files."""
        digest = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:16]
        return f"{self.model}-seed{self.seed}-{digest}"

    def is_answered_by(self, record: Record) -> bool:
        facts = self.facts()
        settings = facts.pop("settings")
        same = all(record.get(name) == value for name, value in facts.items())
        asked = (not self.given or "given" in record) and (not self.densities or "densities" in record)
        return same and asked and _same_settings(record, settings, type(self.settings))


def _same_settings(record: Record, now: Record, kind: type[Settings]) -> bool:
    """Whether a run of the past had these settings, though the model has gained or lost some since.

    A setting that is new since leaves the past alone if it is at its default; one that is gone did so if it
    had not been changed.
    """
    then, changed = record["settings"], record["changed"]
    defaults = kind().model_dump(mode="json")
    gone_unchanged = all(name not in changed for name in then.keys() - now.keys())
    new_at_default = all(now[name] == defaults[name] for name in now.keys() - then.keys())
    return gone_unchanged and new_at_default and all(now[name] == then[name] for name in now.keys() & then)


class Journal:
    """A file of records, and beside it a folder with each run's values by user."""

    def __init__(self, path: Path, per_user: Path) -> None:
        self.path, self.per_user = path, per_user
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))

    def records(self) -> list[Record]:
        """The lines in order; a last one that a kill cut short is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def find(self, run: Run) -> Record | None:
        """The latest answer, if there is one."""
        found = [record for record in self.records() if run.is_answered_by(record)]
        return found[-1] if found else None

    def append(self, record: Record, evaluation: Evaluation) -> None:
        """The values by user first: a line promises them."""
        evaluation.save(self.per_user / record["key"], overwrite=True)
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("ab+") as file:
            cut_half_a_line(file)
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def evaluation(self, record: Record) -> Evaluation | None:
        """The values by user, where this machine has them."""
        folder = self.per_user / record["key"]
        return Evaluation.load(folder) if folder.exists() else None


def cut_half_a_line(file: Any) -> None:
    """A writer that was killed may have left half a line, which would spoil the next one."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        file.truncate(whole)
    file.seek(0, os.SEEK_END)
