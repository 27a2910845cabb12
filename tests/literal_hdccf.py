"""HDCCF's loss of a real batch as the paper writes it: lists, loops and float64.

Nothing of the model is used but its parameters, its settings and what its sampler drew.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

from torch import Tensor

import literal
from hdccf.data.batches import NO_ITEM, Block, History, InBatch, SampledBatch, Windows
from hdccf.data.interactions import Interactions
from hdccf.models.hdccf.model import HDCCFModel
from hdccf.models.layers import Table
from hdccf.similarity import Modulated, Similarity
from literal_attention import users_after
from literal_vectors import Vector, dot, in_ball, unit

Vectors = tuple[list[Vector], list[Vector]]
"""p (or q) and e of each node."""


def similarity(kind: Similarity) -> Callable[[Vector, Vector, Vector, Vector], float]:
    """f(p, q, e of the left, e of the right)."""
    name = type(kind).__name__.lower()
    if isinstance(kind, Modulated):
        g = perceptron(kind)
        return lambda p, q, left, right: literal.modulated(unit(p), unit(q), left, right, g)
    plain: dict[str, Callable[[Vector, Vector], float]] = {
        "dot": dot,
        "cosine": lambda p, q: dot(unit(p), unit(q)),
        "popular": lambda p, q: dot(unit(p[:-1]), unit(q[:-1])) + 0.1 * q[-1],
        "euclidean": lambda p, q: 1 - math.dist(in_ball(p), in_ball(q)),
    }
    return lambda p, q, _, __: plain[name](p, q)


def perceptron(kind: Modulated) -> Callable[[list[float]], list[float]]:
    """g of Eq. 8 on (e_right ‖ e_left ‖ product)."""
    first = [
        [*a, *b, *c]
        for a, b, c in zip(
            kind.right_weight.tolist(), kind.left_weight.tolist(), kind.product_weight.tolist(), strict=True
        )
    ]
    layers = [first, *(weight.tolist() for weight in kind.weights)]
    biases = [bias.tolist() for bias in kind.biases]

    def g(x: list[float]) -> list[float]:
        for number, (weight, bias) in enumerate(zip(layers, biases, strict=True)):
            x = [max(0.0, value) for value in x] if number else x
            x = [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]
        return x

    return g


class Literal:
    """The parameters, data and settings of one model as lists."""

    def __init__(self, model: HDCCFModel, data: Interactions) -> None:
        self.s = model.settings
        self.pairs = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
        self.n_users, self.n_items = data.n_users, data.n_items
        self.items = tables(model.items)
        self.past = self.items if model.past is None else tables(model.past)
        self.attention = model.attention
        self.users = None if model.users is None else tables(model.users)
        if self.s.nearest:
            self.nearest_users, self.nearest_items = (
                model.nearest_users.tolist(),
                model.nearest_items.tolist(),
            )
        self.lowest = model.user_item.lowest
        self._similarities = {
            name: None if kind is None else similarity(kind)
            for name, kind in (("ui", model.user_item), ("uu", model.user_user), ("ii", model.item_item))
        }

    # -- scores ----------------------------------------------------------------------------------------------

    def score(self, relation: str, left: Vectors, right: Vectors) -> literal.Score:
        f = self._similarities[relation]
        assert f is not None
        return cache(lambda a, b: f(left[0][a], right[0][b], left[1][a], right[1][b]))

    def history(self, history: History, n_rows: int) -> Vectors:
        """Each row's normalised, weighted sum of its items' unit vectors."""
        made = []
        for table in self.past:
            rows = [[0.0] * len(table[0]) for _ in range(n_rows)]
            for row, item, weight in zip(
                history.rows.tolist(), history.items.tolist(), history.weights.tolist(), strict=True
            ):
                rows[row] = [a + weight * b for a, b in zip(rows[row], unit(table[item]), strict=True)]
            made.append([unit(row) for row in rows])
        return made[0], made[1]

    def attended(self, windows: Windows) -> Vectors:
        """Each row's place in what attention makes of its window."""
        assert self.attention is not None
        made: list[Vector] = []
        for window in windows.items.tolist():
            there = [self.past[0][item] for item in window if item != NO_ITEM]
            made += [[]] * (len(window) - len(there)) + users_after(self.attention, there)
        rows = [made[place] for place in windows.places.tolist()]
        return rows, rows

    # -- weights ---------------------------------------------------------------------------------------------

    def observed(self, user: int, item: int) -> bool:
        return self.s.mask_observed and (user, item) in self.pairs

    def frequency(self, kind: str, node: int) -> float:
        side = 0 if kind == "users" else 1
        return float(max(1, sum(pair[side] == node for pair in self.pairs)))

    def weight(self, kind: str) -> literal.Weight:
        """frequency^(−β) for what in-batch drew by frequency, frequency^(1 − β) for what came uniformly."""
        power = -self.s.frequency_correction + (0.0 if self.s.sampler == "in-batch" else 1.0)
        return cache(lambda node: math.pow(self.frequency(kind, node), power))

    def mean_one(self, kind: str) -> literal.Weight:
        """The same, 1 on average over all of them."""
        weight, n = self.weight(kind), self.n_users if kind == "users" else self.n_items
        mean = sum(weight(node) for node in range(n)) / n
        return lambda node: weight(node) / mean

    # -- the losses ------------------------------------------------------------------------------------------

    def instances(self, batch: InBatch | SampledBatch) -> dict[str, float]:
        """Eq. 14 and 17 of batches with a row an instance."""
        s, users, items = self.s, batch.users.tolist(), batch.items.tolist()
        assert self.users is not None
        f = self.score("ui", self.users, self.items)
        sets = [self._sets(batch, k) for k in range(len(users))]
        each = [
            literal.debiased_contrastive(
                f,
                u,
                i,
                *sets[k],
                self.observed,
                s.omega_items,
                s.omega_users,
                s.temperature,
                self.weight("items"),
                self.weight("users"),
                self.lowest,
                s.item_side,
                s.user_side,
            )
            for k, (u, i) in enumerate(zip(users, items, strict=True))
        ]
        parts = {"user-item": weighted_mean(each, batch.weights)}
        if s.user_user_weight:
            g = self.score("uu", self.users, self.users)
            terms = [
                self._relation(g, u, i, sets[k][3], sets[k][1], self.observed, self.weight("users"))
                for k, (u, i) in enumerate(zip(users, items, strict=True))
            ]
            parts["user-user"] = s.user_user_weight * weighted_mean(terms, batch.weights)
        if s.item_item_weight:
            g = self.score("ii", self.items, self.items)
            observed = literal.swapped(self.observed)
            terms = [
                self._relation(g, i, u, sets[k][2], sets[k][0], observed, self.weight("items"))
                for k, (u, i) in enumerate(zip(users, items, strict=True))
            ]
            parts["item-item"] = s.item_item_weight * weighted_mean(terms, batch.weights)
        return parts

    def _sets(
        self, batch: InBatch | SampledBatch, k: int
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """Negative items, negative users, positive items and positive users of one instance."""
        if isinstance(batch, SampledBatch):
            parts = (batch.negative_items, batch.negative_users, batch.neighbour_items, batch.neighbour_users)
            drawn = [part[k].tolist() for part in parts]
            return drawn[0], drawn[1], drawn[2], drawn[3]
        items, users = (
            side.columns[side.own].tolist() for side in (batch.item_negatives, batch.user_negatives)
        )
        negatives = (literal.in_batch_negatives(side, k) for side in (items, users))
        return next(negatives), next(negatives), items[k], users[k]

    def _relation(
        self,
        f: literal.Score,
        anchor: int,
        via: int,
        positives: Sequence[int],
        negatives: Sequence[int],
        observed: literal.Observed,
        weight: literal.Weight,
    ) -> float:
        """Eq. 17, the mean over the neighbours that are not the anchor itself."""
        tau = self.s.temperature
        if all(observed(x, via) for x in negatives):
            negatives = []
        terms = literal.debiased_neighbour_contrastive(
            f, anchor, via, positives, negatives, observed, tau, weight
        )
        return sum(terms) / max(1, sum(x != anchor for x in positives))

    def block(self, batch: Block, draws: list[Tensor]) -> dict[str, float]:
        """Eq. 14 of every positive of a block; of its anchors Eq. 17, with the neighbours that were drawn."""
        s, users = self.s, batch.users.tolist()
        columns = list(range(self.n_items)) if batch.columns is None else batch.columns.tolist()
        inclusion = [1.0] * len(columns) if batch.inclusion is None else batch.inclusion.tolist()
        item_vectors = pick(self.items, columns)
        if isinstance(batch.history, Windows):
            user_vectors = self.attended(batch.history)
        elif batch.history is not None:
            user_vectors = self.history(batch.history, len(users))
        else:
            assert self.users is not None
            user_vectors = pick(self.users, users)
        f = self.score("ui", user_vectors, item_vectors)
        of_item, of_user = self.mean_one("items"), self.mean_one("users")
        item_weights = [of_item(c) * inclusion[place] for place, c in enumerate(columns)]
        user_weights = [of_user(u) * self.n_users / len(users) for u in users]
        inside = [[(u, c) in self.pairs for c in columns] for u in users]
        masked = [[self.observed(u, c) for c in columns] for u in users]
        positives = list(zip(batch.rows.tolist(), batch.positive_columns.tolist(), strict=True))

        def over_items(r: int) -> float:
            free = [(weight, f(r, x)) for x, weight in enumerate(item_weights) if not masked[r][x]]
            return self.held(free, [f(r, x) for row, x in positives if row == r], s.omega_items)

        def over_users(c: int) -> float:
            free = [(weight, f(x, c)) for x, weight in enumerate(user_weights) if not masked[x][c]]
            return self.held(free, [f(x, c) for x, column in positives if column == c], s.omega_users)

        each = []
        for r, c in positives:
            top = math.exp(f(r, c) / s.temperature)
            below = top + s.item_side * over_items(r) + s.user_side * over_users(c)
            each.append(-math.log(top / below))
        parts = {"user-item": weighted_mean(each, batch.weights)}
        if s.nearest:
            n = min(len(users), len(columns))
            if s.user_user_weight:
                assert self.users is not None
                parts["user-user"] = s.user_user_weight * self._nearest(
                    self.score("uu", self.users, self.users),
                    self.score("ui", self.users, self.items),
                    self.nearest_users,
                    users,
                    columns,
                    (draws.pop(0)[:n].tolist(), draws.pop(0).tolist()),
                )
            if s.item_item_weight:
                of_rows = self.score("ui", user_vectors, self.items)
                parts["item-item"] = s.item_item_weight * self._nearest(
                    self.score("ii", self.items, self.items),
                    lambda item, row: of_rows(row, item),
                    self.nearest_items,
                    columns,
                    list(range(len(users))),
                    (draws.pop(0)[:n].tolist(), draws.pop(0).tolist()),
                )
            return parts
        if s.user_user_weight or s.item_item_weight:
            anchors = draws.pop(0)[: s.batch_size].tolist()
        if s.user_user_weight:
            via = [(r, [row[c] for row in inside]) for r, c in (positives[a] for a in anchors)]
            g = self.score("uu", user_vectors, user_vectors)
            each = self._block_relation(g, via, user_weights, draws.pop(0).tolist())
            parts["user-user"] = s.user_user_weight * weighted_mean(each, batch.weights[anchors])
        if s.item_item_weight:
            via = [(c, inside[r]) for r, c in (positives[a] for a in anchors)]
            g = self.score("ii", item_vectors, item_vectors)
            each = self._block_relation(g, via, item_weights, draws.pop(0).tolist())
            parts["item-item"] = s.item_item_weight * weighted_mean(each, batch.weights[anchors])
        return parts

    def _block_relation(
        self,
        f: literal.Score,
        anchors: list[tuple[int, list[bool]]],
        weights: list[float],
        drawn: list[list[int]],
    ) -> list[float]:
        """Eq. 17 of each anchor; given who is related to it: these are drawn, all others are negatives."""
        tau, each = self.s.temperature, []
        for (anchor, related), neighbours in zip(anchors, drawn, strict=True):
            assert all(related[x] for x in neighbours)
            negatives = sum(
                weight * math.exp(f(anchor, x) / tau)
                for x, weight in enumerate(weights)
                if not (self.s.mask_observed and related[x])
            )
            tops = [math.exp(f(anchor, x) / tau) for x in neighbours if x != anchor]
            each.append(sum(-math.log(top / (top + negatives)) for top in tops) / max(1, len(tops)))
        return each

    def _nearest(
        self,
        f: literal.Score,
        across: literal.Score,
        nearest: list[list[int]],
        own: list[int],
        others: list[int],
        drawn: tuple[list[int], list[int]],
    ) -> float:
        """The mean of −log e^{f(p,v)/τ} / Σ e^{f(p,n)/τ} over anchors v and their drawn neighbours p ≠ v."""
        tau, terms = 0.1, []
        for anchor, place in zip(*drawn, strict=True):
            v = own[anchor]
            p = nearest[v][place]
            below = sum(math.exp(f(p, x) / tau) for x in own)
            below += sum(math.exp(across(p, x) / tau) for x in others)
            terms.append(0.0 if p == v else -math.log(math.exp(f(p, v) / tau) / below))
        return sum(terms) / len(terms)

    def held(self, negatives: list[tuple[float, float]], positives: list[float], omega: float) -> float:
        """Eq. 15 and 16 with weights that are taken as they are: Q is their sum."""
        tau = self.s.temperature
        biased = sum(weight * math.exp(score / tau) for weight, score in negatives)
        if not negatives or omega == 0:
            return biased
        size = sum(weight for weight, _ in negatives)
        mean = sum(math.exp(score / tau) for score in positives) / len(positives)
        debiased = (biased - omega * size * mean) / (1 - omega)
        return max(debiased, 1e-6 * biased if math.isinf(self.lowest) else size * math.exp(self.lowest / tau))


def tables(table: Table) -> Vectors:
    """p (or q) and e."""
    embedding = table.embedding.tolist()
    return embedding, embedding if table.factors is None else table.factors.tolist()


def pick(vectors: Vectors, nodes: list[int]) -> Vectors:
    return [vectors[0][node] for node in nodes], [vectors[1][node] for node in nodes]


def weighted_mean(values: Sequence[float], weights: Tensor) -> float:
    each: list[float] = weights.tolist()
    return sum(value * weight for value, weight in zip(values, each, strict=True)) / sum(each)
