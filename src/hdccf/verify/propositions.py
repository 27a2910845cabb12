"""Propositions 1 and 2: how often the in-batch sampler gives each negative, enumerated and simulated."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import prod

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hdccf.data import datasets
from hdccf.data.batches import InBatch, NegativeColumns
from hdccf.data.download import find_stored
from hdccf.data.graph import Graph, Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import InBatchSampler
from hdccf.data.synthetic import synthetic_world
from hdccf.losses.negatives import NegativeSet
from hdccf.models.hdccf import steps
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.hdccf.settings import HDCCF
from hdccf.rng import generator_for
from hdccf.verify.report import Finding, Floats, global_test, mean_interval

PART = "Propositions 1 and 2"
TINY = [(0, 0), (0, 1), (1, 0), (1, 2), (1, 3), (2, 0)]
"""Three users, four items, degrees from 1 to 3; one item that every user has."""


Expected = defaultdict[int, Fraction]
"""How often each item (or user) appears, in expectation; 0 by default."""


def tiny_data() -> Interactions:
    user_ids, item_ids = pl.Series("user", ["a", "b", "c"]), pl.Series("item", ["w", "x", "y", "z"])
    return Interactions.from_codes(*np.array(TINY).T, user_ids=user_ids, item_ids=item_ids)


@dataclass(frozen=True)
class Scripted(Neighbours):
    """Given neighbours instead of drawn ones: one of all possible outcomes."""

    outcome: Int64[Tensor, "b p"]

    def draw(
        self, nodes: Int64[Tensor, " b"], size: int, generator: torch.Generator
    ) -> Int64[Tensor, "b size"]:
        return self.outcome


def _row(neighbours: Neighbours, node: int) -> list[int]:
    found: list[int] = neighbours.flat[neighbours.starts[node] : neighbours.starts[node + 1]].tolist()
    return found


class EverySampler(InBatchSampler):
    """The in-batch sampler with all its possible outcomes for one target instead of a random one."""

    def every_side(
        self, target: int, nodes: Int64[Tensor, " pairs"], neighbours: Neighbours, backwards: Neighbours
    ) -> Iterator[tuple[Fraction, NegativeColumns]]:
        """Every outcome in which pair number `target` is the batch's first instance, with its probability."""
        others = [pair for pair in range(self.graph.n_pairs) if pair != target]
        batches = list(combinations(others, self.batch_size - 1))
        for rest in batches:
            chosen = nodes[torch.tensor([target, *rest])]
            of_each = [_row(neighbours, int(node)) for node in chosen]
            choices = [product(own, repeat=self.neighbours) for own in of_each]
            probability = Fraction(1, len(batches) * prod(len(own) ** self.neighbours for own in of_each))
            for outcome in product(*choices):
                parts = (neighbours.starts, neighbours.flat, neighbours.n_columns)
                script = Scripted(*parts, torch.tensor(outcome))
                yield probability, self._side(chosen, script, backwards, torch.Generator())


def check_enumeration() -> Iterator[Finding]:
    """Every batch and every draw of tiny data, in exact fractions."""
    graph = Graph.of(tiny_data())
    fixed, averaged, cases = [], [], 0
    for batch_size, neighbours in ((2, 2), (3, 1)):
        sampler = EverySampler(graph, torch.ones(graph.n_pairs), batch_size, neighbours)
        for nodes, forward, backward in (
            (graph.pair_users, graph.items_of, graph.users_of),
            (graph.items_of.flat, graph.users_of, graph.items_of),
        ):
            mean: Expected = defaultdict(Fraction)
            for target, node in enumerate(nodes.tolist()):
                expected: Expected = defaultdict(Fraction)
                for probability, negatives in sampler.every_side(target, nodes, forward, backward):
                    # Before masking.
                    counts = _multiplicities(negatives)[0].round().long().tolist()
                    for column, count in zip(negatives.columns.tolist(), counts, strict=True):
                        expected[column] += probability * count
                known = _row(forward, node)
                for column, degree in enumerate(backward.degrees.tolist()):
                    mean[column] += expected[column]
                    if column not in known:
                        predicted = Fraction(batch_size - 1, graph.n_pairs - 1) * neighbours * degree
                        fixed.append(expected[column] / predicted)
            for column, degree in enumerate(backward.degrees.tolist()):
                predicted = Fraction(batch_size - 1, graph.n_pairs) * neighbours * degree
                averaged.append(mean[column] / graph.n_pairs / predicted)
            cases += graph.n_pairs
    detail = f"{len(TINY)} pairs, M = 2 with P = 2 and M = 3 with P = 1, {cases} targets, exact fractions"
    yield _exactly("tiny data, every batch and draw: appearances over (M−1)/(|D|−1)·P·|U_i′|", fixed, detail)
    yield _exactly("the same, averaged over all targets: over (M−1)/|D|·P·|U_i′|", averaged, detail)


def _multiplicities(negatives: NegativeColumns) -> Float[Tensor, "b c"]:
    """How often each column is among each row's negatives; neither masked nor corrected."""
    none = torch.zeros(len(negatives.columns), dtype=torch.float64)
    return steps.in_batch_log_weights(negatives, none, mask_observed=False).exp()


def _exactly(claim: str, ratios: list[Fraction], detail: str) -> Finding:
    """Every ratio is 1, without rounding; shown is the one that is farthest from it."""
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    detail = f"{detail}, {len(ratios)} cells"
    return Finding.exact(PART, claim, 1.0, float(farthest), tolerance=0.0, detail=detail)


ML_100K = "ml-100k"
BATCH_SIZE = 512
NEIGHBOURS = 4


def check_propositions(seed: int = 0, batches: int = 200) -> Iterator[Finding]:
    """Enumerated on tiny data, simulated on synthetic data, and on MovieLens 100K where it is stored."""
    yield from check_enumeration()
    yield check_each_target(seed, 3 * batches)
    yield from check_appearances("synthetic", synthetic_world(seed=seed).interactions, seed, batches)
    stored, _ = find_stored(ML_100K, datasets.find(ML_100K).sources)
    if stored is None:
        reason = f"as it is not in the cache; hdccf data get {ML_100K} brings it there"
        yield Finding.unchecked(PART, ML_100K, reason)
    else:
        yield from check_appearances(ML_100K, datasets.load(ML_100K), seed, batches)


def observed_matrix(graph: Graph) -> Bool[Tensor, "users items"]:
    """Which pairs were observed."""
    observed = torch.zeros(graph.n_users, graph.n_items, dtype=torch.bool)
    observed[graph.pair_users, graph.items_of.flat] = True
    return observed


# -- every (u, i) and i′ on its own --------------------------------------------------------------------------


def check_each_target(seed: int, epochs: int) -> Finding:
    """On few pairs, where (M−1)/|D| differs from (M−1)/(|D|−1), with every target on its own."""
    batch_size, neighbours = 3, 2
    graph, generator = Graph.of(tiny_data()), generator_for(seed, "verify", "tiny")
    sampler = InBatchSampler(graph, torch.ones(graph.n_pairs), batch_size, neighbours)
    unknown = ~observed_matrix(graph)[graph.pair_users]
    number = torch.zeros(graph.n_users, graph.n_items, dtype=torch.int64)
    number[graph.pair_users, graph.items_of.flat] = torch.arange(graph.n_pairs)
    predicted = (batch_size - 1) / (graph.n_pairs - 1) * neighbours * graph.users_of.degrees.double()
    deviations = np.zeros((epochs, int(unknown.sum())))
    for epoch in range(epochs):
        counts = torch.zeros(unknown.shape, dtype=torch.float64)
        for batch in sampler.epoch(generator):
            rows, columns = number[batch.users, batch.items], batch.item_negatives.columns
            # Added, not set: a pair that came twice in an epoch would otherwise go unnoticed.
            found = _multiplicities(batch.item_negatives)
            counts.index_put_((rows[:, None], columns[None, :]), found, accumulate=True)
        deviations[epoch] = (counts - predicted)[unknown].numpy()
    measured, region = global_test(deviations)
    claim = "tiny data, real sampler: all (u, i) and i′ at once, χ² over its mean"
    detail = f"{epochs} epochs, {deviations.shape[1]} cells, M = {batch_size}, P = {neighbours}"
    return Finding.accepted(PART, claim, 1.0, measured, region, detail)


# -- all i′ and all u′, summed over targets ------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """One side of the data: which columns can be negatives of which nodes, and how often they should be."""

    unknown: Bool[Tensor, "nodes columns"]
    expected: Float[Tensor, " columns"]
    """Appearances in one batch, over all its targets that have not observed the column."""

    @classmethod
    def of(cls, observed: Bool[Tensor, "nodes columns"], batch_size: int, neighbours: int) -> "Counted":
        degrees, frequency = observed.sum(1).double(), observed.sum(0).double()
        n_pairs = float(degrees.sum())
        targets = n_pairs - degrees @ observed.double()
        each = (batch_size - 1) / (n_pairs - 1) * neighbours * frequency
        return cls(~observed, batch_size / n_pairs * targets * each)

    def deviations(
        self, against: NegativeSet, columns: Int64[Tensor, " c"], nodes: Int64[Tensor, " b"]
    ) -> Floats:
        """Of one batch, in units that make frequent and rare columns vary alike."""
        counts = against.weights().double().round() * self.unknown[nodes][:, columns]
        totals = torch.zeros_like(self.expected).index_add_(0, columns, counts.sum(0))
        possible = self.expected > 0
        return ((totals - self.expected)[possible] / self.expected[possible].sqrt()).numpy()


def check_appearances(
    name: str, data: Interactions, seed: int, batches: int, batch_size: int = BATCH_SIZE
) -> Iterator[Finding]:
    """How often each item and user is a negative in independent batches, and how often neighbours repeat."""
    # Negatives have their multiplicity as weight: not masked, not corrected; any scores.
    settings = HDCCF(
        user_vector="free",
        embedding_dim=1,
        sampler="in-batch",
        batch_size=batch_size,
        neighbours=NEIGHBOURS,
        mask_observed=False,
        frequency_correction=0.0,
        user_user_weight=1.0,
        item_item_weight=1.0,
    )
    model = HDCCFModel(settings, data, generator_for(0, "verify", "does not matter")).requires_grad_(False)
    generator = generator_for(seed, "verify", "propositions", name)
    observed = observed_matrix(model.graph)
    of_users, of_items = (Counted.of(side, batch_size, NEIGHBOURS) for side in (observed, observed.T))
    found: tuple[list[Floats], list[Floats]] = ([], [])
    repeats = np.zeros((batches, 2))
    for k in range(batches):
        # The first batch of an epoch each time: batches of one epoch would not be independent.
        batch: InBatch = next(model.batches(generator))
        scored = steps.score_in_batch(model, batch)
        relations = (scored.items, scored.users), (scored.item_item, scored.user_user)
        for (on_items, on_users), rows in zip(relations, found, strict=True):
            assert on_items is not None and on_users is not None  # noqa: S101, PT018 - the settings ask for them
            on_both = (
                of_users.deviations(on_items, batch.item_negatives.columns, batch.users),
                of_items.deviations(on_users, batch.user_negatives.columns, batch.items),
            )
            rows.append(np.concatenate(on_both))
        repeats[k] = _repeats(batch.item_negatives, batch.users, model.graph.items_of)
        repeats[k] += _repeats(batch.user_negatives, batch.items, model.graph.users_of)
    sizes = f"{batches} independent batches, M = {batch_size}, P = {NEIGHBOURS}"
    for proposition, losses, rows in ((1, "L_u-i", found[0]), (2, "L_i-i and L_u-u", found[1])):
        table = np.stack(rows)
        measured, region = global_test(table)
        claim = f"{name}, Proposition {proposition} ({losses}): all i′ and u′ at once, χ² over its mean"
        yield Finding.accepted(
            PART, claim, 1.0, measured, region, f"{sizes}, {table.shape[1]} items and users"
        )
    mean, (low, high) = mean_interval(repeats[:, 0], repeats[:, 1])
    once = float(repeats[:, 1].mean())
    claim = f"{name}: equal neighbours of an instance, over those of draws with replacement"
    yield Finding.estimated(PART, claim, 1.0, mean / once, (low / once, high / once), sizes)


def _repeats(
    negatives: NegativeColumns, nodes: Int64[Tensor, " b"], neighbours: Neighbours
) -> tuple[float, float]:
    """How many of a row's pairs of neighbours are equal, and how many should be, one in its degree."""
    own = negatives.own
    equal = (own[:, :, None] == own[:, None, :]).sum() - own.numel()
    pairs = own.shape[1] * (own.shape[1] - 1)
    return float(equal), float((pairs / neighbours.degrees[nodes].double()).sum())
