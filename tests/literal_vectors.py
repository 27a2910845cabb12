"""Vectors as lists, for the literal versions of the formulas."""

import math

Vector = list[float]


def dot(p: Vector, q: Vector) -> float:
    return sum(a * b for a, b in zip(p, q, strict=True))


def unit(p: Vector) -> Vector:
    length = math.sqrt(dot(p, p))
    return [x / length for x in p] if length else p


def in_ball(p: Vector) -> Vector:
    return [x / max(1.0, math.sqrt(dot(p, p))) for x in p]
