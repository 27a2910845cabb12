"""Peers in processes of their own that sleep until they are asked, a line of text for a line of JSON."""

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from curves import Validator
from hdccf.data.interactions import Interactions
from hdccf.data.split import Split
from peers.environments import python_with

HERE = Path(__file__).parent
CORNAC = ("cornac==3.0.1", "numpy<2.4")


def recbole_requirements() -> tuple[str, ...]:
    """RecBole's last release with what it still runs with, and our own torch."""
    return ("recbole==1.2.1", _torch(), "numpy==1.26.4", "pandas==2.2.3", "scipy==1.17.1", "setuptools<81")


def _torch() -> str:
    pinned = (HERE.parent.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (torch_pin,) = (line for line in pinned if line.startswith("torch=="))
    return torch_pin


def write_pairs(train: Interactions, folder: Path) -> None:
    """An atomic file, as RecBole calls its tables."""
    folder.mkdir()
    table = pl.DataFrame({"user_id:token": train.users, "item_id:token": train.items})
    table.write_csv(folder / "pairs.inter", separator="\t")


def save_pairs(train: Interactions, folder: Path) -> None:
    np.save(folder / "users.npy", train.users)
    np.save(folder / "items.npy", train.items)
    np.save(folder / "shape.npy", np.array([train.n_users, train.n_items]))


class Asked:
    """A script in another environment; what it says besides its answers is kept in a log."""

    def __init__(self, python: Path, script: str, folder: Path, *arguments: str) -> None:
        self.name, self.log = script, (folder / "log.txt").open("w", encoding="utf-8")
        command = [str(python), str(HERE / script), str(folder), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder
        )

    def ask(self, question: str) -> dict[str, Any]:
        asked, answers = self.process.stdin, self.process.stdout
        if asked is None or answers is None:
            raise SystemExit(f"the pipes to {self.name} are gone")
        asked.write(question + "\n")
        asked.flush()
        # What a library prints itself is no answer.
        line = next((line for line in answers if line.startswith("{")), None)
        if line is None:
            raise SystemExit(f"{self.name} ended: {Path(self.log.name).read_text(encoding='utf-8')[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.communicate()  # closes its input, which ends it
        self.log.close()


class Cornac(Asked):
    """Cornac's BPR, some epochs at a time."""

    def __init__(self, train: Interactions, folder: Path, options: dict[str, Any]) -> None:
        self.folder = folder
        save_pairs(train, folder)
        python = python_with("cornac", CORNAC)
        super().__init__(python, "cornac_epochs.py", folder, json.dumps(options))

    def train(self, epochs: int) -> tuple[float, float, Any, Any]:
        """Seconds by the clock and of the processor, and vectors whose dot product is the score: the item's
        bias is one more coordinate."""
        took = self.ask(str(epochs))
        p, q, b = (np.load(self.folder / f"{name}.npy") for name in "pqb")
        return (
            took["seconds"],
            took["processor"],
            np.hstack([p, np.ones((len(p), 1))]),
            np.hstack([q, b[:, None]]),
        )


class SASRec(Asked):
    """RecTools' SASRec, an epoch at a time."""

    def __init__(self, train: Interactions, folder: Path, options: dict[str, Any], seed: int) -> None:
        self.folder = folder
        save_pairs(train, folder)
        own = {**options, "seed": seed, "threads": torch.get_num_threads()}
        python = python_with("rectools", ("rectools[torch]==0.19.0", _torch()))
        super().__init__(python, "rectools_epochs.py", folder, json.dumps(own))

    def train(self) -> tuple[float, float, Any, Any]:
        """Seconds by the clock and of the processor, and vectors whose dot product is the score: one more
        coordinate puts items that training did not know behind all others."""
        took = self.ask("")
        p, q = (np.load(self.folder / f"{name}.npy") for name in "pq")
        behind = np.where(np.isnan(q).any(1), -1e6, 0.0)[:, None]
        p, q = np.nan_to_num(p), np.nan_to_num(q)
        return (
            took["seconds"],
            took["processor"],
            np.hstack([p, np.ones((len(p), 1))]),
            np.hstack([q, behind]),
        )


class RecBole(Asked):
    """RecBole's models, an epoch at a time, with the scores that the judge will look at."""

    def __init__(self, split: Split, judge: Validator, folder: Path, threads: int) -> None:
        write_pairs(split.train, folder / "pairs")
        self.asked_for = Recorder(split.n_users, split.n_items)
        judge(self.asked_for)
        self.keys = self.asked_for.keys()
        self.folder = folder
        np.save(folder / "asked.npy", np.stack(np.divmod(self.keys, split.n_items)))
        python = python_with("recbole", recbole_requirements())
        super().__init__(python, "recbole_epoch.py", folder, "pairs", str(threads))

    def train(self, model: str, options: dict[str, Any]) -> tuple[float, float, "Looked"]:
        question = {"model": model, "options": options, "pairs": str(self.folder / "asked.npy")}
        took = self.ask(json.dumps(question))
        scores = np.load(self.folder / "scores.npy")
        # Whom training does not know it cannot score: behind everybody.
        scores[np.isnan(scores)] = np.nanmin(scores) - 1
        return took["seconds"], took["processor"], Looked(self.asked_for, self.keys, scores)


class Recorder:
    """A scorer that notes which pairs it is asked for, and finds all of them alike."""

    def __init__(self, n_users: int, n_items: int) -> None:
        self.n_users, self.n_items = n_users, n_items
        self._keys: list[Any] = []

    def keys(self) -> Any:
        return np.unique(np.concatenate(self._keys))

    def score_block(
        self, users: Int64[Tensor, " b"], items: Int64[Tensor, " c"] | None = None
    ) -> Float[Tensor, "b c"]:
        raise NotImplementedError("only sampled evaluation asks for few enough pairs to be handed over")

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        self._keys.append((users[:, None] * self.n_items + items).flatten().numpy())
        return torch.zeros(items.shape)


class Looked(Recorder):
    """A scorer of the noted pairs, by scores that somebody else computed."""

    def __init__(self, recorder: Recorder, keys: Any, scores: Any) -> None:
        super().__init__(recorder.n_users, recorder.n_items)
        self._sorted, self._scores = torch.from_numpy(keys), torch.from_numpy(scores)

    def score_rows(self, users: Int64[Tensor, " b"], items: Int64[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        return self._scores[torch.searchsorted(self._sorted, users[:, None] * self.n_items + items)]
