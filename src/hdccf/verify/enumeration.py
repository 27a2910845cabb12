"""Propositions 1 and 2 exactly: every batch and every draw of neighbours on data that one can write down."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import prod

import numpy as np
import polars as pl
import torch
from jaxtyping import Int64
from torch import Tensor

from hdccf.data.batches import NegativeColumns
from hdccf.data.graph import Graph, Neighbours
from hdccf.data.interactions import Interactions
from hdccf.data.samplers import InBatchSampler
from hdccf.models.hdccf import steps
from hdccf.verify.report import Finding

PART = "Propositions 1 and 2"
TINY = [(0, 0), (0, 1), (1, 0), (1, 2), (1, 3), (2, 0)]
"""Three users, four items, degrees from 1 to 3; one item that every user has."""


Expected = defaultdict[int, Fraction]
"""How often each item (or user) appears, in expectation; 0 where nothing is said."""


def tiny_data() -> Interactions:
    users, items = np.array(TINY).T
    return Interactions.from_codes(
        users,
        items,
        user_ids=pl.Series("user", ["a", "b", "c"]),
        item_ids=pl.Series("item", ["w", "x", "y", "z"]),
    )


@dataclass(frozen=True)
class Scripted(Neighbours):
    """Neighbours that were not drawn but given: one of all possible outcomes."""

    outcome: Int64[Tensor, "b p"]

    def draw(
        self, nodes: Int64[Tensor, " b"], size: int, generator: torch.Generator
    ) -> Int64[Tensor, "b size"]:
        return self.outcome


class EverySampler(InBatchSampler):
    """The in-batch sampler, giving all that it could give to one target instead of something at random."""

    def every_side(
        self, target: int, nodes: Int64[Tensor, " pairs"], neighbours: Neighbours, backwards: Neighbours
    ) -> Iterator[tuple[Fraction, NegativeColumns]]:
        """Every outcome in which pair number `target` is the batch's first instance, with its probability."""
        others = [pair for pair in range(self.graph.n_pairs) if pair != target]
        batches = list(combinations(others, self.batch_size - 1))
        for rest in batches:
            chosen = nodes[torch.tensor([target, *rest])]
            of_each = [
                neighbours.flat[neighbours.starts[k] : neighbours.starts[k + 1]].tolist() for k in chosen
            ]
            choices = [product(own, repeat=self.neighbours) for own in of_each]
            probability = Fraction(1, len(batches) * prod(len(own) ** self.neighbours for own in of_each))
            for outcome in product(*choices):
                script = Scripted(
                    neighbours.starts, neighbours.flat, neighbours.n_columns, torch.tensor(outcome)
                )
                yield probability, self._side(chosen, script, backwards, torch.Generator())


def check_enumeration() -> Iterator[Finding]:
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
                expected = _appearances(sampler, target, nodes, forward, backward)
                known = forward.flat[forward.starts[node] : forward.starts[node + 1]].tolist()
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


def _appearances(
    sampler: EverySampler,
    target: int,
    nodes: Int64[Tensor, " pairs"],
    neighbours: Neighbours,
    backwards: Neighbours,
) -> Expected:
    """How often each column stands among the target's negatives, in expectation; before masking."""
    expected: Expected = defaultdict(Fraction)
    for probability, negatives in sampler.every_side(target, nodes, neighbours, backwards):
        log_counts = steps.in_batch_log_weights(
            negatives, torch.zeros(len(negatives.columns), dtype=torch.float64), mask_observed=False
        )
        counts = log_counts[0].exp().round().long().tolist()
        for column, count in zip(negatives.columns.tolist(), counts, strict=True):
            expected[column] += probability * count
    return expected


def _exactly(claim: str, ratios: list[Fraction], detail: str) -> Finding:
    """Every ratio is 1, without rounding; shown is the one that is farthest from it."""
    farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
    return Finding.exact(
        PART, claim, 1.0, float(farthest), tolerance=0.0, detail=f"{detail}, {len(ratios)} cells"
    )
