"""How good the defaults are on data that nobody tuned them for, beside models that were given a choice.

    python benchmarks/defaults.py [--dataset ml-100k …] [--interactions FILE …] [--rows ours references …]

Data sets are split as `hdccf train` splits them; yelp-2019, gowalla-3 and beauty are read from
$HDCCF_DATA_HOME/NAME/events.csv.gz, 5-core. Rows are the default, our presets, and references: ALS and EASE,
each with the best of five settings by full NDCG@10 on validation; BPR with its defaults; implicit's ALS and
BPR with theirs; RecTools' SASRec in its own environment, its epoch chosen in the same way, with as many
minutes of the processor as --sasrec-minutes; the most popular items. Each is tested once. Seconds are from
the split to the model: of all five settings, and with what is looked at on validation, but for SASRec.

Each row is a line of results/defaults.jsonl, and one that is there is not run again (--again does): the same
split, settings and seed. results/defaults.md and .png are written from the lines; --report does only that.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does: a waiting thread sleeps

import numpy as np
import torch
from scipy import sparse

import hdccf
from curves import Validator
from defaults_report import RESULTS, Line, draw, key_of, ratios_of, read_lines, report, tables_of
from hdccf.cli.data import CacheOptions, ReadOptions, SplitOptions, open_split
from hdccf.console import note
from hdccf.data.datasets import DATASETS
from hdccf.errors import ConfigError, HdccfError
from hdccf.experiments.plans import CORE
from hdccf.experiments.reproduce import commit_of
from hdccf.models import entry_named
from hdccf.models.base import Scorer, VectorScorer
from hdccf.models.hdccf.settings import PRESETS, automatic_candidates
from hdccf.similarity import Dot, Vectors
from peers.asked import SASRec

HERE = Path(__file__).parent
NAMES = ("ml-100k", "ml-1m", "yelp-2019", "gowalla-3", "beauty", "synthetic")
METRIC = "full:ndcg@10"
PATIENCE = 10
"""Epochs of SASRec without a better one."""


Fitted = tuple[Scorer, dict[str, Any]]
"""What scores, and what the row's line tells of its training."""


@dataclass(frozen=True)
class Row:
    """A line of the tables."""

    fit: Callable[[hdccf.Split, Any, int], Fitted]
    settings: Any = None
    """What `fit` is given, and a part of the line's key."""
    ours: bool = False


# -- rows ----------------------------------------------------------------------------------------------------


def fit_default(split: hdccf.Split, _: Any, seed: int) -> Fitted:
    """What somebody gets who sets nothing; with the seconds of the winner's own training."""
    candidates = automatic_candidates(split.train, validation_metric=METRIC)
    model = hdccf.fit(split, candidates, seed=seed)
    chosen = next(name for name, settings in candidates.items() if settings == model.settings)
    return model, {"chosen": chosen, "alone": round(model.seconds, 2)}


def fit_model(split: hdccf.Split, settings: dict[str, Any], seed: int) -> Fitted:
    """A model with its defaults but for the settings that are named; references are not calibrated."""
    values = dict(settings)
    name = values.pop("model")
    options = hdccf.FitOptions(calibrate=name == "hdccf")
    return hdccf.fit(split, entry_named(name).settings(**values), seed=seed, options=options), {}


def fit_best(split: hdccf.Split, tried: list[dict[str, Any]], seed: int) -> Fitted:
    """The best of some settings on validation; the first of those that are equally good."""
    judge, found = Validator(split, METRIC), list[tuple[float, Scorer, dict[str, Any]]]()
    for settings in tried:
        scorer, _ = fit_model(split, settings, seed)
        value = judge(scorer)
        note(f"{settings}: {METRIC} {value:.4f} on validation")
        # One model at a time: EASE's weights are items × items.
        found = [max([*found, (value, scorer, settings)], key=lambda one: one[0])]
    ((value, scorer, settings),) = found
    return scorer, {"chosen": settings, "validation": round(value, 5)}


def fit_implicit(split: hdccf.Split, kind: str, seed: int) -> Fitted:
    """A model of implicit's with its defaults."""
    from implicit.cpu.als import AlternatingLeastSquares
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from threadpoolctl import threadpool_limits

    build = {"als": AlternatingLeastSquares, "bpr": BayesianPersonalizedRanking}[kind]
    model = build(random_state=seed, num_threads=torch.get_num_threads())
    with threadpool_limits(1, "blas"):  # as implicit asks for
        model.fit(sparse.csr_matrix(split.train.matrix, dtype=np.float32), show_progress=False)
    return dot(model.user_factors, model.item_factors), {}


def fit_sasrec(split: hdccf.Split, settings: dict[str, Any], seed: int) -> Fitted:
    """RecTools' SASRec at its best epoch on validation. It ends when no further epoch fits the minutes."""
    if split.train.times is None:
        raise ConfigError("SASRec needs times, and the data has none; leave out the row")
    judge, values = Validator(split, METRIC), dict(settings)
    budget, most = 60 * values.pop("minutes"), values["session_max_len"]
    if split.n_items > MANY:
        values |= SAMPLED
    # Every history is padded to this length: where most are short, little of an epoch would be theirs.
    values["session_max_len"] = int(np.clip(np.quantile(split.train.by_user.degrees, 0.95), 2, most))
    seconds, processor, epoch = 0.0, 0.0, 0
    best: tuple[float, int, Scorer] | None = None
    with tempfile.TemporaryDirectory() as folder, SASRec(split.train, Path(folder), values, seed) as peer:
        while best is None or (epoch - best[1] < PATIENCE and processor * (epoch + 1) / epoch <= budget):
            taken, worked, p, q = peer.train()
            seconds, processor, epoch = seconds + taken, processor + worked, epoch + 1
            scorer = dot(p, q)
            value = judge(scorer)
            note(f"SASRec, epoch {epoch}: {METRIC} {value:.4f} on validation, {processor:.0f} s")
            if best is None or value > best[0]:
                best = value, epoch, scorer
    told = {"validation": round(best[0], 5), "epoch": best[1], "epochs": epoch, "options": values}
    # The training's own: not that of its process's start, nor of looking at validation.
    return best[2], {**told, "seconds": round(seconds, 2), "processor": round(processor, 2)}


def dot(users: Any, items: Any) -> VectorScorer:
    p, q = (torch.from_numpy(np.array(x, np.float32)) for x in (users, items))
    return VectorScorer(Dot(), Vectors(p, p), Vectors(q, q))


OURS = ("hdccf", "attention", "time-blind", "spectral", "recency")
"""Presets that somebody could take on new data: not the paper's, which are for ablations."""
ALS = ((32, 1.0, 1.0), (64, 1.0, 5.0), (64, 20.0, 5.0), (64, 1.0, 40.0), (128, 5.0, 10.0))
"""Dimension, l2 and alpha, around what was best on MovieLens and Gowalla (src/hdccf/tuned)."""
EASE = (10.0, 50.0, 200.0, 800.0, 3000.0)
"""l2, likewise."""
SASREC: dict[str, Any] = {"n_factors": 64, "batch_size": 32, "session_max_len": 100}
"""Its defaults, softmax among them, but for the dimension (256) and the batch (128). In 40 s of one core on
ml-100k the smaller batch had twice the validation value …"""
SAMPLED = {"loss": "sampled_softmax", "n_negatives": 128}
"""… and on beauty this was ahead of the softmax: it is taken where there are more than `MANY` items."""
MANY = 8_000

ROWS: dict[str, Row] = {
    "default": Row(fit_default, "automatic", ours=True),
    **{
        f"preset {name}": Row(
            fit_model, {"model": "hdccf", **PRESETS[name], "validation_metric": METRIC}, ours=True
        )
        for name in OURS
    },
    "ALS, best of 5": Row(
        fit_best, [{"model": "als", "embedding_dim": d, "l2": l2, "alpha": alpha} for d, l2, alpha in ALS]
    ),
    "EASE, best of 5": Row(fit_best, [{"model": "ease", "l2": l2} for l2 in EASE]),
    "BPR": Row(fit_model, {"model": "bpr"}),
    "implicit ALS": Row(fit_implicit, "als"),
    "implicit BPR": Row(fit_implicit, "bpr"),
    "RecTools SASRec": Row(fit_sasrec, SASREC),
    "most popular": Row(fit_model, {"model": "most-popular"}),
}
GROUPS = {
    "ours": [name for name, row in ROWS.items() if row.ours],
    "references": [name for name, row in ROWS.items() if not row.ours],
}


# -- running -------------------------------------------------------------------------------------------------


def split_of(name: str) -> hdccf.Split:
    """The split that `hdccf train` makes of a named data set."""
    options = SplitOptions(dataset=name)
    if name in NAMES and name not in DATASETS:
        path = Path(os.environ.get("HDCCF_DATA_HOME", ".")) / name / "events.csv.gz"
        if not path.exists():
            raise ConfigError(f"{name} is read from {path}, which is not there; set HDCCF_DATA_HOME")
        options = SplitOptions(interactions=str(path), core=CORE)
    return open_split(options, 0, ReadOptions(), CacheOptions())


def test(scorer: Scorer, split: hdccf.Split) -> dict[str, float]:
    """NDCG@10 among candidates of both kinds and among all items, and the coverage of the lists."""
    both = hdccf.evaluate(scorer, split, ks=(10,)).values
    popular = hdccf.evaluate(scorer, split, protocols=("sampled",), ks=(10,), weighting="popularity").values
    values = {
        "uniform": both["sampled"]["ndcg@10"],
        "popular": popular["sampled"]["ndcg@10"],
        "full": both["full"]["ndcg@10"],
        "coverage": both["full"]["coverage@10"],
    }
    return {name: round(value, 5) for name, value in values.items()}


def run(dataset: str, split: hdccf.Split, name: str, settings: Any, seed: int) -> Line:
    """Trains and tests a row; its line of the journal."""
    load, start, processor = round(os.getloadavg()[0], 1), time.perf_counter(), time.process_time()
    scorer, told = ROWS[name].fit(split, settings, seed)
    took = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    return {
        "dataset": dataset,
        "split": split.fingerprint,
        "row": name,
        "settings": settings,
        "seed": seed,
        "values": test(scorer, split),
        **{clock: round(value, 2) for clock, value in took.items()},
        **told,
        "load": load,
        "commit": commit_of(HERE.parent / "src"),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def run_missing(
    file: Path, dataset: str, split: hdccf.Split, rows: dict[str, Any], seed: int, again: bool = False
) -> None:
    """Runs the rows (name → settings) that have no line for this split, these settings and this seed."""
    done = {key_of(line) for line in read_lines(file)}
    for name, settings in rows.items():
        wanted = {"split": split.fingerprint, "row": name, "settings": settings, "seed": seed}
        if key_of(wanted) in done and not again:
            continue
        note(f"{dataset}: {name}")
        try:
            line = run(dataset, split, name, settings, seed)
        except (HdccfError, subprocess.CalledProcessError) as cause:
            note(f"{dataset}: {name} is left out ({cause})")
            continue
        note(f"{dataset}: {name} {line['values']}, {line['seconds']:.1f} s")
        # Opened only now: the file may have been replaced while the row ran, as git does.
        with file.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", nargs="+", default=[], help=f"all of {', '.join(NAMES)} if none is given"
    )
    parser.add_argument("--interactions", nargs="+", default=[], metavar="FILE", help="events of your own")
    parser.add_argument("--rows", nargs="+", choices=[*GROUPS, *ROWS], default=list(GROUPS))
    parser.add_argument("--sasrec-minutes", type=float, default=6.0, help="of the processor, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the journal and the tables")
    parser.add_argument("--again", action="store_true", help="run also what has a line")
    parser.add_argument("--report", action="store_true", help="run nothing: the tables and the figure only")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios on the last line")
    options = parser.parse_args()
    names = dict.fromkeys(name for given in options.rows for name in GROUPS.get(given, [given]))
    rows = {name: ROWS[name].settings for name in names}
    if "RecTools SASRec" in rows:
        rows["RecTools SASRec"] = {**SASREC, "minutes": options.sasrec_minutes}
    file = options.out / "defaults.jsonl"
    datasets = options.dataset or ([] if options.interactions else NAMES)
    for name in () if options.report else datasets:
        run_missing(file, name, split_of(name), rows, options.seed, options.again)
    for path in () if options.report else options.interactions:
        split = open_split(SplitOptions(interactions=path), 0, ReadOptions(), CacheOptions())
        run_missing(file, Path(path).name, split, rows, options.seed, options.again)
    tables = tables_of(read_lines(file), options.seed, list(ROWS))
    (options.out / "defaults.md").write_text(report(tables, GROUPS["references"]), encoding="utf-8")
    draw(tables, GROUPS["references"], options.out / "defaults.png")
    if options.json:
        print(json.dumps(ratios_of(tables, GROUPS["references"])))


if __name__ == "__main__":
    main()
