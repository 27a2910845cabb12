"""The models, by name. Adding one is a file, its settings and a line in `MODELS`.

A model's file is imported when it is first asked for, so that a run of one model does not load the others.
Models of other packages are added by `register_model`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hdccf.config import Settings, build_settings, read_toml
from hdccf.console import note
from hdccf.errors import ConfigError, one_line

if TYPE_CHECKING:
    from hdccf.models.base import Build

PLUGINS = "hdccf.models"
"""The entry point group of other packages: modules that register models, losses or metrics."""

B = TypeVar("B", bound=Callable[..., Any])

TUNED = Path(__file__).parents[1] / "tuned"
"""Tuned settings are presets: `tuned/DATASET/MODEL.toml`, and `tuned/DATASET-time/MODEL.toml` for time-aware
studies; the name of the folder is the name of the preset."""


@dataclass(frozen=True)
class Entry:
    """A model in the registry; its settings class and its builder are imported when they are first used."""

    load: "Callable[[], tuple[type[Settings], Build]]" = field(repr=False)
    summary: str

    @cached_property
    def _loaded(self) -> "tuple[type[Settings], Build]":
        return self.load()

    @property
    def settings(self) -> type[Settings]:
        return self._loaded[0]

    @property
    def build(self) -> "Build":
        """Takes settings, training pairs and a generator."""
        return self._loaded[1]

    @property
    def presets(self) -> dict[str, dict[str, Any]]:
        """Named changes to the defaults."""
        return self.settings.presets


def _als() -> "tuple[type[Settings], Build]":
    from hdccf.models.als import ALS, ALSModel

    return ALS, ALSModel


def _ease() -> "tuple[type[Settings], Build]":
    from hdccf.models.ease import EASE, EASEModel

    return EASE, EASEModel


def _chebycf() -> "tuple[type[Settings], Build]":
    from hdccf.models.chebycf import ChebyCF, ChebyCFModel

    return ChebyCF, ChebyCFModel


def _enmf() -> "tuple[type[Settings], Build]":
    from hdccf.models.enmf import ENMF, ENMFModel

    return ENMF, ENMFModel


def _hdccf() -> "tuple[type[Settings], Build]":
    from hdccf.models.hdccf.model import HDCCFModel
    from hdccf.models.hdccf.settings import HDCCF

    return HDCCF, HDCCFModel


def _irgan() -> "tuple[type[Settings], Build]":
    from hdccf.models.irgan import IRGAN, IRGANModel

    return IRGAN, IRGANModel


def _sdgar() -> "tuple[type[Settings], Build]":
    from hdccf.models.sdgar import SDGAR, build_sdgar

    return SDGAR, build_sdgar


def _pmf() -> "tuple[type[Settings], Build]":
    from hdccf.models.factorization import PMF, build_pmf

    return PMF, build_pmf


def _bpr() -> "tuple[type[Settings], Build]":
    from hdccf.models.factorization import BPR, build_bpr

    return BPR, build_bpr


def _ssm() -> "tuple[type[Settings], Build]":
    from hdccf.models.factorization import SSM, build_ssm

    return SSM, build_ssm


def _sasrec() -> "tuple[type[Settings], Build]":
    from hdccf.models.sasrec import SASRec, build_sasrec

    return SASRec, build_sasrec


def _svdpp() -> "tuple[type[Settings], Build]":
    from hdccf.models.svdpp import SVDpp, build_svdpp

    return SVDpp, build_svdpp


def _neumf() -> "tuple[type[Settings], Build]":
    from hdccf.models.neumf import NeuMF, build_neumf

    return NeuMF, build_neumf


def _lightgcn() -> "tuple[type[Settings], Build]":
    from hdccf.models.lightgcn import LightGCN, build_lightgcn

    return LightGCN, build_lightgcn


def _most_popular() -> "tuple[type[Settings], Build]":
    from hdccf.models.reference import MostPopular, MostPopularModel

    return MostPopular, MostPopularModel


def _random() -> "tuple[type[Settings], Build]":
    from hdccf.models.reference import Random, RandomModel

    return Random, RandomModel


MODELS: dict[str, Entry] = {
    "als": Entry(_als, "weighted matrix factorisation by alternating least squares, by implicit"),
    "ease": Entry(_ease, "each item regressed on all others, in closed form"),
    "chebycf": Entry(_chebycf, "a history smoothed over the item graph by a polynomial, in closed form"),
    "enmf": Entry(_enmf, "matrix factorisation that learns from all pairs and draws no negatives"),
    "hdccf": Entry(_hdccf, "hardness-aware debiased contrastive collaborative filtering"),
    "irgan": Entry(_irgan, "a generator of items that learns from a discriminator's rewards"),
    "sd-gar": Entry(_sdgar, "a discriminator whose hard negatives a decomposed generator draws"),
    "pmf": Entry(_pmf, "probabilistic matrix factorisation: squared error with drawn zeros"),
    "bpr": Entry(_bpr, "Bayesian personalised ranking: a positive above one unobserved item"),
    "ssm": Entry(_ssm, "sampled softmax: a positive's share among itself and many negatives"),
    "sasrec": Entry(_sasrec, "self-attention over the history, and a softmax over the next item"),
    "svdpp": Entry(_svdpp, "SVD++: a factorisation whose users also add up the items of their history"),
    "neumf": Entry(_neumf, "a factorisation and a perceptron over pairs in one logit (NeuMF)"),
    "lightgcn": Entry(_lightgcn, "BPR on vectors that are averaged over the graph's neighbours"),
    "most-popular": Entry(_most_popular, "the items with the most users, for every user"),
    "random": Entry(_random, "a fixed random order for each user; what chance gives"),
}


_BUILT_IN = frozenset(MODELS)


def register_model(settings: type[Settings], summary: str = "") -> Callable[[B], B]:
    """Adds a model, so that `fit`, `load_run` and all commands know it by its name.

    A run is opened by the name of its model. So the module that registers the model has to be imported
    first; the commands import every module in the entry point group `hdccf.models`.

    Parameters
    ----------
    settings
        The settings class; its class variable `model` is the name.
    summary
        What `hdccf models` says about it; without one, the first line of the docstring.

    Returns
    -------
    A decorator for the model class, or for a function that takes settings, training pairs and a generator.

    Examples
    --------
    >>> class Shelf(hdccf.Settings):
    ...     model: ClassVar[str] = "shelf"
    >>> @hdccf.register_model(Shelf)
    ... class ShelfModel(hdccf.Model):
    ...     '''The order of the catalogue, for every user.'''
    """
    name = settings.model
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) or name in _BUILT_IN:
        problem = "is a model of hdccf" if name in _BUILT_IN else "is no name"
        raise ConfigError(
            f"model={name!r} of {settings.__name__} {problem}; give the class another, as in "
            'model: ClassVar[str] = "my-model"'
        )

    def register(build: B) -> B:
        MODELS[name] = Entry(lambda: (settings, build), summary or (build.__doc__ or "").partition("\n")[0])
        return build

    return register


@cache
def load_plugins() -> None:
    """Imports the modules that other packages name in the entry point group `hdccf.models`, once."""
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as cause:  # one broken package must not take the others away
            note(f"{plugin.value} of the entry points {PLUGINS} cannot be imported: {one_line(cause)}")


def entry_named(name: str) -> Entry:
    """The registry's entry, or an error that suggests the nearest name."""
    if name not in MODELS:
        load_plugins()
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(
            f"model={name!r} is unknown; {hint}choose one of {sorted(MODELS)}, or import the module that "
            "registers it"
        )
    return MODELS[name]


def name_of(settings: Settings) -> str:
    """The registry's name for a settings object."""
    entry = MODELS.get(settings.model)
    if entry is None or type(settings) is not entry.settings:
        raise ConfigError(
            f"{type(settings).__name__} is not a model's settings; take those of one of {sorted(MODELS)}"
        )
    return settings.model


def presets_of(model: str) -> list[str]:
    """The names that `preset_named` knows for a model, its own first."""
    tuned = sorted(file.parent.name for file in TUNED.glob(f"*/{model}.toml"))
    return [*entry_named(model).presets, *tuned]


def preset_named(model: str, preset: str) -> dict[str, Any]:
    """Changes to the model's defaults: one of its own presets, or settings tuned on a data set."""
    own = entry_named(model).presets
    if preset in own:
        return own[preset]
    if preset not in presets_of(model):
        known = presets_of(model) or "none"
        raise ConfigError(f"preset={preset!r} is unknown for model {model}; choose one of {known}")
    return read_toml(TUNED / preset / f"{model}.toml")


def preset(name: str, model: str = "hdccf", **changes: Any) -> Settings:
    """Settings by the name of a preset.

    Parameters
    ----------
    name
        One of those that `hdccf models` lists for the model, such as "paper" or "ml-100k-time".
    model
        The name of the model.
    changes
        Settings that differ from the preset's.

    Examples
    --------
    >>> hdccf.preset("paper-in-batch", temperature=0.2).sampler
    'in-batch'
    """
    return build_settings(entry_named(model).settings, preset_named(model, name), changes)
