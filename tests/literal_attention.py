"""Attention over a window as its formulas say: lists, loops and float64."""

import math

from torch import Tensor, nn

from hdccf.models.layers import AttentionLayer, HistoryAttention
from literal_vectors import Vector, dot, unit


def users_after(encoder: HistoryAttention, window: list[Vector]) -> list[Vector]:
    """The user vector after each item of a window that is all there."""
    length, dim = len(encoder.ages), len(window[0])
    # Windows end at the last place: a short one has the last age vectors.
    ages = encoder.ages.tolist()[length - len(window) :]
    x = [
        [math.sqrt(dim) * a + b for a, b in zip(unit(item), age, strict=True)]
        for item, age in zip(window, ages, strict=True)
    ]
    for layer in encoder.layers:
        assert isinstance(layer, AttentionLayer)
        x = [added(row, more) for row, more in zip(x, answers(layer, x), strict=True)]
        x = [added(row, thought(layer, row)) for row in x]
    return [unit(normed(encoder.norm, row)) for row in x]


def answers(layer: AttentionLayer, x: list[Vector]) -> list[Vector]:
    """Each place looks at itself and at what was before it, each head with its share of the dimensions."""
    seen = [normed(layer.first_norm, row) for row in x]
    dim, heads = len(x[0]), layer.heads
    size = dim // heads
    asked = [times(layer.query_key_value, row) for row in seen]
    ages = layer.age_weights.tolist()
    given = []
    for place in range(len(x)):
        joined: Vector = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            query = asked[place][:dim][own]
            logits = [
                dot(query, asked[other][dim : 2 * dim][own]) / math.sqrt(size) + ages[head][place - other]
                for other in range(place + 1)
            ]
            total = sum(math.exp(logit) for logit in logits)
            answer = [0.0] * size
            for other, logit in enumerate(logits):
                value = asked[other][2 * dim :][own]
                answer = [a + math.exp(logit) / total * v for a, v in zip(answer, value, strict=True)]
            joined += answer
        given.append(times(layer.output, joined))
    return given


def thought(layer: AttentionLayer, row: Vector) -> Vector:
    inner = added(times(layer.inner, normed(layer.second_norm, row)), layer.inner_bias.tolist())
    return times(layer.outer, [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in inner])


def normed(norm: nn.LayerNorm, row: Vector) -> Vector:
    mean = sum(row) / len(row)
    spread = math.sqrt(sum((v - mean) ** 2 for v in row) / len(row) + norm.eps)
    return [
        (v - mean) / spread * w + b
        for v, w, b in zip(row, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    ]


def times(matrix: Tensor, row: Vector) -> Vector:
    return [dot(weights, row) for weights in matrix.tolist()]


def added(left: Vector, right: Vector) -> Vector:
    return [a + b for a, b in zip(left, right, strict=True)]
