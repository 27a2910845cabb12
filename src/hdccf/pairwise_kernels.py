"""The passes over a tile of `pairwise`, compiled: everything between its matrix products, read once.

This file is imported only where numba is installed (`hdccf.pairwise_passes` decides and has the same in
torch, which the tests hold against it). float32 only, and arrays in C order, as the signatures say. All
let go of the interpreter's lock, so that every core can work on a tile of its own.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float32]

_f = np.float32
_ONE, _TWO = _f(1), _f(2)
_MINUS_LOG2_E = _f(-1.4426950408889634)
_LARGEST = _f(126)  # 2^±126 are normal numbers; σ is 0 or 1 to the last bit long before
_ROUNDER = _f(3 << 22)  # added to a small number it leaves the nearest integer in the lowest bits
_EXPONENT, _BIAS = np.int32(23), np.int32(127 << 23)
_C1, _C2, _C3 = _f(0.6931471805599453), _f(0.2402265069591007), _f(0.05550410866482158)  # ln(2)^n / n!
_C4, _C5, _C6 = _f(0.009618129107628477), _f(0.0013333558146428443), _f(0.00015403530393381608)

# Sums over a row may be taken in any order, as lanes of a vector register need, and nothing is checked for a
# division by zero, of which there is none. Infinities and NaN keep their meaning.
_options: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp", "reassoc"},
}


# "reassoc" would take the rounder away.
@njit(**_options | {"fastmath": {"contract", "nsz"}})
def exp_minus(z: np.float32) -> Any:
    """e^(−z) to 2·10⁻⁷ of itself, held within 2^±126; NaN stays NaN.

    2^x of an integer is its bits moved into a float's exponent, and of what is left, at most ½, the first
    seven terms of its series. In arithmetic that fits vector registers, unlike the library's `exp`.
    """
    x = z * _MINUS_LOG2_E
    x = _LARGEST if x > _LARGEST else x
    x = -_LARGEST if x < -_LARGEST else x
    shifted = x + _ROUNDER
    y = x - (shifted - _ROUNDER)
    series = _ONE + y * (_C1 + y * (_C2 + y * (_C3 + y * (_C4 + y * (_C5 + y * _C6)))))
    power = np.int32((_f(shifted).view(np.int32) << _EXPONENT) + _BIAS).view(np.float32)
    return series * power


@njit("void(f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,:,::1], i8)", **_options)
def fold(
    part: _Floats, e: _Floats, right_weight: _Floats, product_weight: _Floats, folded: _Floats, row: int
) -> None:
    rows, d, _ = folded.shape
    inner = e.shape[1]
    for u in range(rows):
        e_u = e[row + u]
        for k in range(d):
            for j in range(inner):
                folded[u, k, j] = right_weight[k, j] + product_weight[k, j] * e_u[j]
            folded[u, k, inner] = part[row + u, k]


@njit("void(f4[:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8)", **_options)
def unfold(
    to_folded: _Floats,
    e: _Floats,
    product_weight: _Floats,
    to_e: _Floats,
    to_right_weight: _Floats,
    to_product_weight: _Floats,
    row: int,
) -> None:
    rows, d, inner = to_folded.shape
    for u in range(rows):
        e_u, to_e_u = e[row + u], to_e[row + u]
        for k in range(d):
            for j in range(inner):
                to_folded_j = to_folded[u, k, j]
                to_e_u[j] += to_folded_j * product_weight[k, j]
                to_right_weight[k, j] += to_folded_j
                to_product_weight[k, j] += to_folded_j * e_u[j]


@njit("void(f4[:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8, i8)", **_options)
def score(z: _Floats, p: _Floats, q_t: _Floats, scores: _Floats, row: int, start: int) -> None:
    rows, d, width = z.shape
    for u in range(rows):
        total = scores[row + u, start : start + width]
        total[:] = _f(0)
        for k in range(d):
            z_k, p_k, q_k = z[u, k], p[row + u, k], q_t[k, start : start + width]
            for i in range(width):
                m = _ONE / (_ONE + exp_minus(z_k[i]))
                total[i] += p_k * q_k[i] * m * m


@njit("void(f4[:,:,::1], " + "f4[:,::1], " * 6 + "i8, i8)", **_options)
def differentiate(
    z: _Floats,
    p: _Floats,
    q_t: _Floats,
    grad: _Floats,
    to_p: _Floats,
    to_q_t: _Floats,
    to_part: _Floats,
    row: int,
    start: int,
) -> None:
    rows, d, width = z.shape
    for u in range(rows):
        upstream = grad[row + u, start : start + width]
        for k in range(d):
            z_k, p_k, q_k = z[u, k], p[row + u, k], q_t[k, start : start + width]
            to_q_k = to_q_t[k, start : start + width]
            sum_to_p, sum_to_part = _f(0), _f(0)
            for i in range(width):
                e = exp_minus(z_k[i])
                m = _ONE / (_ONE + e)
                to_pq = upstream[i] * m * m
                to_q_k[i] += p_k * to_pq
                to_pq *= q_k[i]
                sum_to_p += to_pq
                to_z = _TWO * p_k * to_pq * (e * m)  # 1 − m, without its cancellation
                sum_to_part += to_z
                z_k[i] = to_z
            to_p[row + u, k] += sum_to_p
            to_part[row + u, k] += sum_to_part
