"""Experiments: hyperparameter search, the paper's tables and studies, and their figures."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hdccf.config import VALIDATION_METRIC, Settings
from hdccf.data.split import Split
from hdccf.models import entry_named


def tune(
    split: Split,
    model: str | type[Settings] = "hdccf",
    *,
    trials: int = 30,
    minutes: float = 20.0,
    metric: str = VALIDATION_METRIC,
    time_aware: bool = False,
    seed: int = 0,
    study: str | Path | None = None,
    progress: bool = False,
    **fixed: Any,
) -> Settings:
    """Searches a model's settings on the validation part, as `hdccf tune` does; needs `hdccf[tune]`.

    Parameters
    ----------
    split
        A split with a validation part.
    model
        The model's name, or its settings class.
    trials, minutes
        The budget: at most so many trials and so many processor minutes, whichever ends first.
    metric
        What a trial is measured by, protocol:metric@k.
    time_aware
        Whether settings that use times are searched as well.
    seed
        Of the search and of the trainings.
    study
        A journal file, which a later call continues; without it the study is not kept.
    progress
        Whether to show the trials.
    fixed
        Settings that are not searched, such as `embedding_dim=64`.

    Returns
    -------
    The best settings, for `hdccf.fit`.

    Examples
    --------
    >>> best = hdccf.tune(split, hdccf.BPR, trials=10)  # doctest: +SKIP
    >>> model = hdccf.fit(split, best)  # doctest: +SKIP
    """
    from hdccf.experiments.studies import Budget, Question
    from hdccf.experiments.tuning import tune as work_on

    name = model if isinstance(model, str) else model.model
    question = Question(name, "split", split.fingerprint, metric, time_aware, fixed, seed)
    with TemporaryDirectory() as folder:
        journal = str(study or Path(folder) / "study.jsonl")
        out = Path(folder) / "best.toml"
        found = work_on(split, question, Budget(trials, minutes), study=journal, out=out, progress=progress)
    return entry_named(name).settings(**found.settings)
