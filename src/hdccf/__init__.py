"""Hardness-aware debiased contrastive collaborative filtering: train, compare and serve recommenders.

The names below are imported when they are first used, so that `import hdccf` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

__version__ = version("hdccf")

if TYPE_CHECKING:
    from hdccf.config import FitOptions as FitOptions
    from hdccf.config import Settings as Settings
    from hdccf.config import TrainingSettings as TrainingSettings
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
    from hdccf.evaluation import Ranker as Ranker
    from hdccf.evaluation import evaluate as evaluate
    from hdccf.evaluation.compare import Comparison as Comparison
    from hdccf.evaluation.compare import compare as compare
    from hdccf.evaluation.metrics import register_metric as register_metric
    from hdccf.experiments import tune as tune
    from hdccf.losses.contrastive import register_loss as register_loss
    from hdccf.models import preset as preset
    from hdccf.models import register_model as register_model
    from hdccf.models.als import ALS as ALS
    from hdccf.models.base import Model as Model
    from hdccf.models.base import Objective as Objective
    from hdccf.models.chebycf import ChebyCF as ChebyCF
    from hdccf.models.ease import EASE as EASE
    from hdccf.models.enmf import ENMF as ENMF
    from hdccf.models.factorization import BPR as BPR
    from hdccf.models.factorization import PMF as PMF
    from hdccf.models.factorization import SSM as SSM
    from hdccf.models.hdccf.settings import HDCCF as HDCCF
    from hdccf.models.irgan import IRGAN as IRGAN
    from hdccf.models.lightgcn import LightGCN as LightGCN
    from hdccf.models.neumf import NeuMF as NeuMF
    from hdccf.models.reference import MostPopular as MostPopular
    from hdccf.models.reference import Random as Random
    from hdccf.models.sasrec import SASRec as SASRec
    from hdccf.models.sdgar import SDGAR as SDGAR
    from hdccf.models.svdpp import SVDpp as SVDpp
    from hdccf.recommend.recommender import Recommender as Recommender
    from hdccf.recommend.recommender import load_run as load_run
    from hdccf.training.fit import fit as fit
    from hdccf.training.fit import resume as resume

_MODULE_OF = {
    "FitOptions": "hdccf.config",
    "Settings": "hdccf.config",
    "TrainingSettings": "hdccf.config",
    "load": "hdccf.data.datasets",
    "Interactions": "hdccf.data.interactions",
    "k_core": "hdccf.data.interactions",
    "read": "hdccf.data.read",
    "read_sql": "hdccf.data.read",
    "Split": "hdccf.data.split",
    "global_time_split": "hdccf.data.split",
    "leave_one_out": "hdccf.data.split",
    "no_split": "hdccf.data.split",
    "predefined_split": "hdccf.data.split",
    "random_split": "hdccf.data.split",
    "World": "hdccf.data.synthetic",
    "synthetic_world": "hdccf.data.synthetic",
    "HdccfError": "hdccf.errors",
    "Evaluation": "hdccf.evaluation",
    "Ranker": "hdccf.evaluation",
    "evaluate": "hdccf.evaluation",
    "Comparison": "hdccf.evaluation.compare",
    "compare": "hdccf.evaluation.compare",
    "register_metric": "hdccf.evaluation.metrics",
    "tune": "hdccf.experiments",
    "register_loss": "hdccf.losses.contrastive",
    "preset": "hdccf.models",
    "register_model": "hdccf.models",
    "ALS": "hdccf.models.als",
    "Model": "hdccf.models.base",
    "Objective": "hdccf.models.base",
    "ChebyCF": "hdccf.models.chebycf",
    "EASE": "hdccf.models.ease",
    "ENMF": "hdccf.models.enmf",
    "BPR": "hdccf.models.factorization",
    "PMF": "hdccf.models.factorization",
    "SSM": "hdccf.models.factorization",
    "HDCCF": "hdccf.models.hdccf.settings",
    "IRGAN": "hdccf.models.irgan",
    "LightGCN": "hdccf.models.lightgcn",
    "NeuMF": "hdccf.models.neumf",
    "MostPopular": "hdccf.models.reference",
    "Random": "hdccf.models.reference",
    "SASRec": "hdccf.models.sasrec",
    "SDGAR": "hdccf.models.sdgar",
    "SVDpp": "hdccf.models.svdpp",
    "Recommender": "hdccf.recommend.recommender",
    "load_run": "hdccf.recommend.recommender",
    "fit": "hdccf.training.fit",
    "resume": "hdccf.training.fit",
}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hdccf' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
