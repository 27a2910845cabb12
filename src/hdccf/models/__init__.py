"""The models, by name. Adding one is a file, its settings and a line here; conformance tests come free."""

from difflib import get_close_matches

from hdccf.config import Settings
from hdccf.errors import ConfigError
from hdccf.models.als import ALS, ALSModel
from hdccf.models.base import Entry
from hdccf.models.ease import EASE, EASEModel
from hdccf.models.enmf import ENMF, ENMFModel
from hdccf.models.factorization import BPR, PMF, SSM, build_bpr, build_pmf, build_ssm
from hdccf.models.hdccf.model import HDCCFModel, remarks
from hdccf.models.hdccf.settings import HDCCF, PRESETS
from hdccf.models.irgan import IRGAN, IRGANModel
from hdccf.models.lightgcn import LightGCN, build_lightgcn
from hdccf.models.neumf import NeuMF, build_neumf
from hdccf.models.reference import MostPopular, MostPopularModel, Random, RandomModel
from hdccf.models.sdgar import SDGAR, build_sdgar
from hdccf.models.svdpp import SVDpp, build_svdpp

MODELS: dict[str, Entry] = {
    "als": Entry(ALS, ALSModel, "weighted matrix factorisation by alternating least squares, by implicit"),
    "ease": Entry(EASE, EASEModel, "each item regressed on all others, in closed form"),
    "enmf": Entry(ENMF, ENMFModel, "matrix factorisation that learns from all pairs and draws no negatives"),
    "hdccf": Entry(
        HDCCF, HDCCFModel, "hardness-aware debiased contrastive collaborative filtering", PRESETS, remarks
    ),
    "irgan": Entry(IRGAN, IRGANModel, "a generator of items that learns from a discriminator's rewards"),
    "sd-gar": Entry(SDGAR, build_sdgar, "a discriminator whose hard negatives a decomposed generator draws"),
    "pmf": Entry(PMF, build_pmf, "probabilistic matrix factorisation: squared error with drawn zeros"),
    "bpr": Entry(BPR, build_bpr, "Bayesian personalised ranking: a positive above one unobserved item"),
    "ssm": Entry(SSM, build_ssm, "sampled softmax: a positive's share among itself and many negatives"),
    "svdpp": Entry(SVDpp, build_svdpp, "SVD++: a factorisation whose users also add up what they have had"),
    "neumf": Entry(NeuMF, build_neumf, "a factorisation and a perceptron over pairs in one logit (NeuMF)"),
    "lightgcn": Entry(
        LightGCN, build_lightgcn, "BPR on vectors that are averaged over the graph's neighbours"
    ),
    "most-popular": Entry(MostPopular, MostPopularModel, "the items with the most users, for everybody"),
    "random": Entry(Random, RandomModel, "a fixed random order for each user; what chance gives"),
}


def entry_named(name: str) -> Entry:
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"model={name!r} is unknown; {hint}choose one of {sorted(MODELS)}")
    return MODELS[name]


def name_of(settings: Settings) -> str:
    """The registry's name for a settings object."""
    for name, entry in MODELS.items():
        if type(settings) is entry.settings:
            return name
    raise ConfigError(
        f"{type(settings).__name__} is not a model's settings; take those of one of {sorted(MODELS)}"
    )
