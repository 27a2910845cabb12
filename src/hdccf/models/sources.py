"""The sources of negatives, by name, and models over pairs that are built with one.

Adding a source is a class and a line here; every model over pairs has it.
"""

from collections.abc import Callable

import torch

from hdccf.data.graph import Graph
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import PairSampler
from hdccf.data.weights import weights_of
from hdccf.losses.pairs import PairLoss
from hdccf.models.irgan_generator import IRGANGenerator, irgan_generator
from hdccf.models.negatives import (
    DynamicNegatives,
    InBatchNegatives,
    NegativeSource,
    PopularityNegatives,
    UniformNegatives,
)
from hdccf.models.pairs import PairModel, PairNet, Shares
from hdccf.models.sdgar_generator import SDGARGenerator
from hdccf.models.settings import IRGANGeneratorSettings, PairSettings, SDGARGeneratorSettings

BuildSource = Callable[[PairSettings, Graph, torch.Generator], NegativeSource]


def _irgan(settings: PairSettings, graph: Graph, generator: torch.Generator) -> IRGANGenerator:
    own = settings if isinstance(settings, IRGANGeneratorSettings) else IRGANGeneratorSettings()
    return irgan_generator(settings, own, graph, generator)


def _sdgar(settings: PairSettings, graph: Graph, generator: torch.Generator) -> SDGARGenerator:
    own = settings if isinstance(settings, SDGARGeneratorSettings) else SDGARGeneratorSettings()
    return SDGARGenerator(graph, own, generator)


SOURCES: dict[str, BuildSource] = {
    "uniform": lambda settings, graph, generator: UniformNegatives(graph),
    "popularity": lambda settings, graph, generator: PopularityNegatives(graph, settings.popularity_power),
    "in-batch": lambda settings, graph, generator: InBatchNegatives(graph),
    "dynamic": lambda settings, graph, generator: DynamicNegatives(graph, settings.candidates),
    "irgan": _irgan,
    "sd-gar": _sdgar,
}


def over_pairs(
    net: PairNet,
    settings: PairSettings,
    graph: Graph,
    train: Interactions,
    loss: PairLoss,
    generator: torch.Generator,
    *,
    by_user: bool = False,
    correct_chances: bool = False,
    group: str = "net",
    batch_only: bool = True,
    products_a_pair: int = 0,
    shares: Shares | None = None,
    kind: type[PairModel] = PairModel,
) -> PairModel:
    """The net as a model, with the negatives and the weights of positives that the settings name.

    Where not `batch_only` a step of the net works on more than the vectors of a batch. `products_a_pair` are
    the multiplications of its layers.
    """
    source = SOURCES[settings.sampler](settings, graph, generator)
    sampler = PairSampler(
        graph,
        graph.along(weights_of(settings, train)),
        settings.batch_size,
        by_user=by_user or source.by_user,
        least=source.least_batch,
    )
    return kind(
        settings,
        net,
        source,
        loss,
        sampler,
        negatives=settings.negatives,
        l2=settings.l2,
        correct_chances=correct_chances,
        group=group,
        lookups_per_step=_lookups_per_step(settings, products_a_pair) if batch_only else None,
        shares=shares,
    )


def _lookups_per_step(settings: PairSettings, products_a_pair: int) -> int | None:
    if settings.sampler in ("irgan", "sd-gar"):  # they look at every item of a user
        return None
    # Looking a number up, and moving it, takes about as long as sixteen products and their gradients.
    each = settings.embedding_dim + products_a_pair // 16
    return settings.batch_size * (1 + settings.negatives) * each
