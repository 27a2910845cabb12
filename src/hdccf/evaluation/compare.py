"""Comparison of systems over seeds and users, and cached evaluations of run folders."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from hdccf.config import EvaluationOptions
from hdccf.console import html_table, note
from hdccf.data.parquet import read_parquet
from hdccf.data.split import Split
from hdccf.errors import DiskFullError, EvaluationError, one_line
from hdccf.evaluation import metrics
from hdccf.evaluation.candidates import CANDIDATE_FORMAT
from hdccf.evaluation.evaluation import Evaluation, Rank, evaluate, markdown_table, rich_table
from hdccf.evaluation.significance import PairedTest, Values, bootstrap_intervals, holm, paired_tests
from hdccf.files import atomic_file, locked
from hdccf.models.base import Scorer

if TYPE_CHECKING:
    from rich.console import RenderableType

LEVEL = 0.01
"""Below this corrected p the best is starred, as in the paper."""

_MUST_AGREE = ("split", "part", "negatives", "weighting", "seed")
_SETTINGS = "hdccf"
"""Their name in the metadata of a Parquet file."""


@dataclass(frozen=True)
class Cell:
    """One system on one metric."""

    mean: float
    interval: tuple[float, float]
    """95 % bootstrap interval over users."""
    deviation: float | None
    """Standard deviation of the mean over seeds; None with one seed."""
    seeds: int


@dataclass(frozen=True)
class Test:
    """The best system of a metric against another one."""

    protocol: str
    metric: str
    best: str
    other: str
    result: PairedTest
    holm_t: float
    """p of the t-test after Holm's correction over all tests of the comparison."""
    holm_wilcoxon: float
    relative: float | None
    """The difference as a share of the other's mean; None where that is zero."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`: cells, significance tests, and their tables; print it.

    Examples
    --------
    >>> hdccf.compare(evaluations).is_significant("full", "ndcg@10")  # doctest: +SKIP
    """

    systems: list[str]
    cells: dict[tuple[str, str], dict[str, Cell]]
    """(protocol, metric) → system → cell."""
    tests: list[Test]
    users: int

    def ranking(self, protocol: str, metric: str) -> list[str]:
        """The systems, best first."""
        row = self.cells[protocol, metric]
        return sorted(self.systems, key=lambda system: -row[system].mean)

    def is_significant(self, protocol: str, metric: str) -> bool:
        """Whether the best is better than every other system with corrected p < 0.01."""
        asked = [test for test in self.tests if (test.protocol, test.metric) == (protocol, metric)]
        return all(test.holm_t < LEVEL and test.result.difference > 0 for test in asked)

    def to_json(self) -> str:
        """Cells, tests, and the best and second system of each metric."""
        rows: dict[str, dict[str, Any]] = {}
        for (protocol, metric), cells in self.cells.items():
            best, second = self.ranking(protocol, metric)[:2]
            rows.setdefault(protocol, {})[metric] = {
                "systems": {system: asdict(cell) for system, cell in cells.items()},
                "best": best,
                "second": second,
                "significant": self.is_significant(protocol, metric),
            }
        tests = []
        for test in self.tests:
            flat = {**asdict(test), **asdict(test.result)}
            del flat["result"]
            # JSON has no infinity: the t and d of a constant difference become null.
            tests.append({key: None if value in (np.inf, -np.inf) else value for key, value in flat.items()})
        return json.dumps({"users": self.users, "results": rows, "tests": tests}, indent=2, allow_nan=False)

    def to_markdown(self) -> str:
        """The table with the best in bold, the second underlined, and the legend."""
        rows = self._rows(("**", "**"), ("<u>", "</u>"), r"\*")
        return f"{markdown_table(['', *map(' '.join, self.cells)], rows)}\n\n{self._legend()}\n"

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        rows = self._rows(("<b>", "</b>"), ("<u>", "</u>"), "*")
        escaped = [[escape(system), *cells] for system, *cells in rows]
        return html_table(self._legend(), ["", *map(" ".join, self.cells)], escaped)

    def __rich__(self) -> "RenderableType":
        from rich import box
        from rich.console import Group
        from rich.markup import escape as plain
        from rich.table import Table

        rows = self._rows(("[bold]", "[/bold]"), ("[underline]", "[/underline]"), "*")
        table = rich_table(
            ["", *map(" ".join, self.cells)], [[plain(system), *cells] for system, *cells in rows]
        )
        tests = Table(box=box.SIMPLE, padding=0, pad_edge=False)
        tests.add_column("best against", no_wrap=True)
        tests.add_column("", min_width=10, overflow="fold")
        for head in ("difference (95 % interval)", "p (t)", "p (W)", "d", "r"):
            tests.add_column(head, justify="right", no_wrap=True)
        for test in self.tests:
            result = test.result
            low, high = result.interval
            tests.add_row(
                f"{test.protocol} {test.metric}",
                plain(test.other),
                f"{result.difference:+.4f} ({low:+.3f} to {high:+.3f})",
                f"{test.holm_t:.1g}",
                f"{test.holm_wilcoxon:.1g}",
                f"{result.cohen_d:.2f}",
                f"{result.rank_biserial:.2f}",
            )
        return Group(table, tests, self._legend())

    def _rows(self, bold: tuple[str, str], underlined: tuple[str, str], star: str) -> list[list[str]]:
        """A row for each system, its name first, with the marks of the paper."""
        rows = {system: [system] for system in self.systems}
        for (protocol, metric), cells in self.cells.items():
            best, second = self.ranking(protocol, metric)[:2]
            starred = self.is_significant(protocol, metric)
            for system, cell in cells.items():
                text = f"{cell.mean:.4f}"
                if system == best:
                    text = f"{bold[0]}{text}{bold[1]}{star if starred else ''}"
                elif system == second:
                    text = f"{underlined[0]}{text}{underlined[1]}"
                if cell.deviation is not None:
                    text += f" ± {cell.deviation:.4f}"
                rows[system].append(text)
        return list(rows.values())

    def _legend(self) -> str:
        seeds = sorted({cell.seeds for row in self.cells.values() for cell in row.values()})
        over = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        return (
            f"Best bold, second underlined; * the best is better than every other with p < {LEVEL} (paired t "
            f"over {self.users:,} users, averaged over {over} seed(s)). Each p (t-test, Wilcoxon) is Holm-"
            "corrected; d is Cohen's, r the rank-biserial correlation; ± is the deviation over seeds."
        )


def compare(
    systems: Mapping[str, Evaluation | Sequence[Evaluation]],
    names: Sequence[str] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compares systems on the same users: paired tests, Holm-corrected, and bootstrap intervals.

    Parameters
    ----------
    systems
        By name the evaluation of each, or one for each seed of its training; a user's values are averaged
        over the seeds.
    names
        Accuracy metrics; without them those that `evaluate(metrics=…)` was given, or else HR at the smallest
        K and NDCG at every K that all have, as in the paper.
    resamples, seed
        Of the bootstrap.

    Examples
    --------
    >>> split = hdccf.leave_one_out(hdccf.synthetic_world(1500, n_users=100, n_items=200).interactions)
    >>> models = {"popular": hdccf.MostPopular(), "ease": hdccf.EASE()}
    >>> found = {name: hdccf.evaluate(hdccf.fit(split, one), split) for name, one in models.items()}
    >>> hdccf.compare(found).systems
    ['popular', 'ease']
    """
    runs_of = {name: [runs] if isinstance(runs, Evaluation) else runs for name, runs in systems.items()}
    evaluations = [evaluation for runs in runs_of.values() for evaluation in runs]
    _check(runs_of, evaluations)
    protocols = [p for p in evaluations[0].values if all(p in each.values for each in evaluations)]
    if not protocols:
        raise EvaluationError(
            "the evaluations have no protocol in common; evaluate all of them under the same ones"
        )
    if names is None:
        ks = sorted(set.intersection(*(set(evaluation.settings["ks"]) for evaluation in evaluations)))
        if not ks:
            raise EvaluationError("the evaluations have no K in common; evaluate all of them at the same K")
        asked = evaluations[0].settings.get("metrics", ())
        names = [name for name in asked if name.partition("@")[0] not in metrics.LIST_METRICS]
        names = names or [f"hr@{ks[0]}", *(f"ndcg@{k}" for k in ks)]
    for name in names:
        metrics.parse(name)
    generator = np.random.default_rng(seed)
    cells: dict[tuple[str, str], dict[str, Cell]] = {}
    differences: dict[tuple[str, str, str, str], Values] = {}
    for protocol, name in product(protocols, names):
        of_user = averaged_over_seeds(runs_of, f"{protocol}/{name}")
        intervals = bootstrap_intervals(list(of_user.values()), resamples=resamples, generator=generator)
        row = {}
        for (system, runs), interval in zip(runs_of.items(), intervals, strict=True):
            means = [run.values[protocol][name] for run in runs]
            deviation = float(np.std(means, ddof=1)) if len(means) > 1 else None
            row[system] = Cell(float(of_user[system].mean()), interval, deviation, len(means))
        cells[protocol, name] = row
        best = max(row, key=lambda system: row[system].mean)
        for other in systems:
            if other != best:
                differences[protocol, name, best, other] = of_user[best] - of_user[other]
    results = paired_tests(list(differences.values()), resamples=resamples, generator=generator)
    holm_t, holm_wilcoxon = holm([r.p_t for r in results]), holm([r.p_wilcoxon for r in results])
    tests = []
    for pair, result, p_t, p_wilcoxon in zip(differences, results, holm_t, holm_wilcoxon, strict=True):
        base = cells[pair[:2]][pair[3]].mean
        tests.append(Test(*pair, result, p_t, p_wilcoxon, result.difference / base if base else None))
    return Comparison(list(systems), cells, tests, len(evaluations[0].per_user))


def _check(systems: Mapping[str, Sequence[Evaluation]], evaluations: Sequence[Evaluation]) -> None:
    if len(systems) < 2 or not all(systems.values()):
        raise EvaluationError(
            f"{len(systems)} system(s) cannot be compared; give two or more "
            "(runs that differ only in their seed are one system)"
        )
    for setting in _MUST_AGREE:
        found = list(dict.fromkeys(str(evaluation.settings[setting]) for evaluation in evaluations))
        if len(found) > 1:
            raise EvaluationError(
                f"the evaluations differ in {setting} ({' and '.join(found[:2])}), so their numbers cannot "
                "be compared; evaluate all of them on the same split with the same settings"
            )


def averaged_over_seeds(systems: Mapping[str, Sequence[Evaluation]], column: str) -> dict[str, Values]:
    """A value for each user who has one everywhere, in the same order for every system."""
    reference = next(iter(systems.values()))[0].per_user["user"]
    averaged: dict[str, Values] = {}
    for system, runs in systems.items():
        for run in runs:
            if column not in run.per_user.columns:
                raise EvaluationError(
                    f"{system} was not evaluated for {column!r}; evaluate all systems alike"
                )
            if not run.per_user["user"].equals(reference):
                raise EvaluationError(
                    f"{system} was evaluated on other users; evaluate all systems on the same split"
                )
        values = [run.per_user[column].cast(pl.Float64).fill_null(float("nan")).to_numpy() for run in runs]
        averaged[system] = np.mean(values, axis=0)
    known = ~np.isnan(np.stack(list(averaged.values()))).any(0)
    return {system: values[known] for system, values in averaged.items()}


# -- values by user in one file ------------------------------------------------------------------------------

BySeed = Mapping[int, Evaluation]
"""A system's evaluations by the seed of its training."""


def on_common_seeds(
    systems: Mapping[str, BySeed], seedless: Sequence[str] = ()
) -> dict[str, list[Evaluation]]:
    """What is tested: the seeds that all systems have; those that do not depend on a seed as they are."""
    seeded = [set(runs) for name, runs in systems.items() if name not in seedless]
    common = set.intersection(*seeded) if seeded else set()
    return {
        name: [run for seed, run in runs.items() if name in seedless or seed in common]
        for name, runs in systems.items()
    }


def write_per_user(path: Path, systems: Mapping[str, BySeed], seedless: Sequence[str] = ()) -> None:
    """One Parquet file of `user`, `model`, `seed` and a column for each metric, as 32-bit numbers."""
    frames = [
        run.per_user.select(
            "user",
            pl.lit(name).alias("model"),
            pl.lit(seed, pl.Int32).alias("seed"),
            pl.exclude("user").cast(pl.Float32),
        )
        for name, runs in systems.items()
        for seed, run in runs.items()
    ]
    first = next(run for runs in systems.values() for run in runs.values())
    settings = {**{name: first.settings[name] for name in _MUST_AGREE}, "seedless": list(seedless)}
    with atomic_file(path) as temporary:
        pl.concat(frames).write_parquet(
            temporary, compression="zstd", compression_level=19, metadata={_SETTINGS: json.dumps(settings)}
        )


def read_per_user(path: Path) -> tuple[dict[str, dict[int, Evaluation]], list[str]]:
    """The systems in a file that `write_per_user` wrote, by seed, and those that do not depend on it."""
    try:
        frame = read_parquet(path)
        settings = json.loads(pl.read_parquet_metadata(path)[_SETTINGS])
        names = [name for name in frame.columns if name not in ("user", "model", "seed")]
        systems: dict[str, dict[int, Evaluation]] = {}
        for (model, seed), rows in frame.partition_by("model", "seed", as_dict=True).items():
            values: dict[str, dict[str, float]] = {}
            for name in names:
                protocol, _, metric = name.partition("/")
                values.setdefault(protocol, {})[metric] = float(rows[name].cast(pl.Float64).mean())  # type: ignore[arg-type]
            ks = sorted({int(name.rpartition("@")[2]) for name in names})
            per_user = rows.drop("model", "seed")
            systems.setdefault(model, {})[seed] = Evaluation(values, per_user, {}, {}, {**settings, "ks": ks})
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as cause:
        raise EvaluationError(
            f"{path} holds no values by user ({one_line(cause)}); give one that `hdccf reproduce table` wrote"
        ) from cause
    return systems, settings["seedless"]


# -- runs ----------------------------------------------------------------------------------------------------

FOLDER = "evaluation"
"""Of a run's evaluations, in the run's folder."""


class Run(Scorer, Protocol):
    """A trained run, as `load_run` opens it: a scorer with its split, folder and settings."""

    split: Split
    seed: int

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> dict[str, Any]: ...

    @property
    def name(self) -> str: ...


def evaluate_run(
    run: Run, *, progress: bool = False, again: bool = True, rank: Rank | None = None, **options: Any
) -> Evaluation:
    """Evaluates a run on its own split and saves the result in the run's folder.

    `options` are fields of `EvaluationOptions`. With `again=False` a saved result is returned if it has the
    same options and the weights have not changed.
    """
    asked = EvaluationOptions(**options).model_dump()
    if asked["metrics"]:  # a part of what the folder is for
        return evaluate(run, run.split, **asked, progress=progress, rank=rank)
    folder, weights = Path(run.path) / FOLDER / asked["part"], Path(run.path) / "best.safetensors"
    # None where there is no file to tell whether the weights have changed.
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16] if weights.exists() else None
    if not again and digest is not None and folder.exists():
        saved = Evaluation.load(folder)
        settings = {
            **asked,
            "protocols": [*asked["protocols"]],
            "metrics": [],
            "ks": sorted(set(asked["ks"])),
        }
        del settings["memory"]  # which changes no number
        settings |= {"split": run.split.fingerprint, "candidates": CANDIDATE_FORMAT, "weights": digest}
        if all(saved.settings.get(setting) == value for setting, value in settings.items()):
            return saved
    # A run in a folder without write permission can be evaluated as well.
    writable = os.access(folder.parents[2], os.W_OK)
    with locked(Path(run.path), EvaluationError) if writable else nullcontext():
        found = evaluate(run, run.split, **asked, progress=progress, rank=rank)
        found.settings["weights"] = digest
        try:
            found.save(folder, overwrite=True)
        except DiskFullError:
            raise
        except OSError as cause:
            note(f"the evaluation could not be kept in {folder} ({cause.strerror})")
    return found


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by system: runs that differ only in their seed are one, others differ in name or settings."""
    systems: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.split.fingerprint != runs[0].split.fingerprint:
            raise EvaluationError(
                f"{runs[0].path} was trained on the split {runs[0].split.fingerprint}, {run.path} on "
                f"{run.split.fingerprint}: their numbers answer different questions; compare runs of the "
                "same split"
            )
        settings = json.dumps(run.config["settings"], sort_keys=True, default=str)
        systems.setdefault((run.name, settings), []).append(run)
    for same in systems.values():
        if len({run.seed for run in same}) < len(same):
            raise EvaluationError(
                f"{' and '.join(str(run.path) for run in same)} are the same model with the same settings "
                "and seed, so one result would count twice; give each seed once"
            )
    labels = _labels([same[0] for same in systems.values()])
    return dict(zip(labels, systems.values(), strict=True))


def _labels(runs: Sequence[Run]) -> list[str]:
    """The model's name, and where several systems have the same one the settings in which they differ."""
    labels = []
    for run in runs:
        own = run.config["settings"]
        namesakes = [other.config["settings"] for other in runs if other.name == run.name]
        differing = [key for key in own if any(other.get(key) != own[key] for other in namesakes)]
        if len(namesakes) == 1:
            labels.append(run.name)
        elif len(differing) <= 3:
            labels.append(f"{run.name} ({', '.join(f'{key}={own[key]}' for key in differing)})")
        else:
            labels.append(f"{run.name} ({Path(run.path).name})")
    return labels if len(set(labels)) == len(labels) else [str(run.path) for run in runs]
