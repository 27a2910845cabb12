"""Hardness-aware debiased contrastive collaborative filtering: train, compare and serve recommenders.

The names below are imported when they are first used, so that `import hdccf` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("hdccf")

if TYPE_CHECKING:
    from hdccf.config import FitOptions as FitOptions
    from hdccf.data.datasets import load as load
    from hdccf.data.interactions import Interactions as Interactions
    from hdccf.data.interactions import k_core as k_core
    from hdccf.data.read import read as read
    from hdccf.data.read import read_sql as read_sql
    from hdccf.data.split import Split as Split
    from hdccf.data.split import global_time_split as global_time_split
    from hdccf.data.split import leave_one_out as leave_one_out
    from hdccf.data.split import no_split as no_split
    from hdccf.data.split import predefined_split as predefined_split
    from hdccf.data.split import random_split as random_split
    from hdccf.data.synthetic import World as World
    from hdccf.data.synthetic import synthetic_world as synthetic_world
    from hdccf.errors import HdccfError as HdccfError
    from hdccf.evaluation import Evaluation as Evaluation
    from hdccf.evaluation import evaluate as evaluate
    from hdccf.models.hdccf.settings import HDCCF as HDCCF
    from hdccf.models.reference import MostPopular as MostPopular
    from hdccf.models.reference import Random as Random
    from hdccf.recommend.recommender import Recommender as Recommender
    from hdccf.recommend.recommender import load_run as load_run
    from hdccf.training.fit import fit as fit
    from hdccf.training.fit import resume as resume

_MODULE_OF = {
    "HDCCF": "hdccf.models.hdccf.settings",
    "MostPopular": "hdccf.models.reference",
    "Random": "hdccf.models.reference",
    "Recommender": "hdccf.recommend.recommender",
    "load_run": "hdccf.recommend.recommender",
    "FitOptions": "hdccf.config",
    "fit": "hdccf.training.fit",
    "resume": "hdccf.training.fit",
    "World": "hdccf.data.synthetic",
    "synthetic_world": "hdccf.data.synthetic",
    "load": "hdccf.data.datasets",
    "Evaluation": "hdccf.evaluation",
    "evaluate": "hdccf.evaluation",
    "Split": "hdccf.data.split",
    "global_time_split": "hdccf.data.split",
    "k_core": "hdccf.data.interactions",
    "leave_one_out": "hdccf.data.split",
    "no_split": "hdccf.data.split",
    "predefined_split": "hdccf.data.split",
    "random_split": "hdccf.data.split",
    "read": "hdccf.data.read",
    "read_sql": "hdccf.data.read",
    "HdccfError": "hdccf.errors",
    "Interactions": "hdccf.data.interactions",
}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hdccf' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
