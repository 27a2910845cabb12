"""Journal records made up for tests, without any training."""

from typing import Any

import numpy as np
import polars as pl

from hdccf.evaluation.evaluation import Evaluation
from hdccf.experiments.plans import Row, Task
from hdccf.experiments.reproduce import Journal, Run
from hdccf.experiments.tables import Outcome, Record

PROTOCOLS, METRICS = ("sampled", "full"), ("hr@10", "ndcg@10", "ndcg@50")
USERS = 200


def run_of(row: Row, seed: int = 0, **changes: Any) -> Run:
    return Run("small", "fingerprint", Task(PROTOCOLS, METRICS, **changes), row, seed)


def record_of(run: Run, values: dict[str, dict[str, float]], **more: Any) -> Record:
    return {
        **run.facts(),
        "key": run.key,
        "changed": sorted(run.settings.model_dump(exclude_defaults=True)),
        "values": values,
        "best_epoch": 3,
        "validation": 0.5,
        "terms": {},
        "seconds": 1.0,
        "wall_seconds": 2.0,
        "commit": "abc",
        "machine": "two cores",
        "ended": "2026-01-01T00:00:00+00:00",
        **more,
    }


def evaluated(level: float, seed: int) -> Evaluation:
    """Per-user values around a level, the same noise for every model of a seed."""
    noise = np.random.default_rng(seed).normal(0, 0.05, (len(PROTOCOLS) * len(METRICS), USERS))
    wobble = np.random.default_rng(int(level * 1e6)).normal(0, 0.01, noise.shape)
    names = [f"{protocol}/{metric}" for protocol in PROTOCOLS for metric in METRICS]
    columns = {name: level + row for name, row in zip(names, noise + wobble, strict=True)}
    values: dict[str, dict[str, float]] = {protocol: {} for protocol in PROTOCOLS}
    for name, column in columns.items():
        protocol, _, metric = name.partition("/")
        values[protocol][metric] = float(column.mean())
    settings = {"split": "x", "part": "test", "negatives": 99, "weighting": "uniform", "seed": 0, "ks": [10]}
    return Evaluation(values, pl.DataFrame({"user": np.arange(USERS), **columns}), {}, {}, settings)


def journal_of(journal: Journal, rows: list[Row], levels: dict[str, float], **more: Any) -> Outcome:
    """As if the rows had been run: each label's values lie around its level."""
    found: dict[str, list[Record]] = {row.label: [] for row in rows}
    for row in rows:
        for seed in range(row.seeds):
            evaluation = evaluated(levels[row.label], seed)
            record = record_of(run_of(row, seed), evaluation.values, **more)
            journal.append(record, evaluation)
            found[row.label].append(record)
    return Outcome(found, {})
