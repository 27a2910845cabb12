"""All pairs of the modulated similarity, compiled: products, sigmoids and sums in the nearest cache.

This file is imported only where numba is installed; `kernels.pairwise` decides and lays the arrays out, and
its tiles of torch are the oracle. float32 only, arrays in C order. All functions release the interpreter's
lock, so that every core works on its own.

Panel j is COLUMNS columns of the right side. A row of the left takes panel after panel: z in one product, all
that depends on z in one pass, and on the way back the two products that z's gradient is part of. numba has no
vectors, and a library's product pays only for more numbers than the nearest cache holds, so that the product
in vector registers is written out for LLVM.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hdccf.kernels.pairwise import Where

# Sixteen sums of sixteen lanes are half the registers of AVX-512, eight of eight half of AVX2's: enough to
# hide how long an addition takes, and the rest is for operands.
_features = vars(config)["CPU_FEATURES"] or binding.get_host_cpu_features().flatten()
LANES, ROWS = (16, 8) if "+avx512f" in _features else (8, 4)
_VECTORS = 2
COLUMNS = LANES * _VECTORS

_vector = ir.VectorType(ir.FloatType(), LANES)
_nothing = ir.Constant(_vector, ir.Undefined)
_to_all_lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)


def _add_product(
    typing: Any,
    a: Any,
    a_at: Any,
    a_row: Any,
    a_step: Any,
    b: Any,
    b_at: Any,
    b_step: Any,
    c: Any,
    c_at: Any,
    c_row: Any,
    depth: Any,
) -> tuple[Any, Any]:
    """c[r, i] += Σ_s a[r, s]·b[s, i] of ROWS rows and COLUMNS columns, s from 0 to depth.

    Of float32 arrays in C order, whatever their shape: `_at` is where each begins in numbers from its start,
    and a's `_row` and `_step` are how far apart its r and s are, b's `_step` its s, c's `_row` its r.
    """
    at = types.intp
    return types.void(a, at, at, at, b, at, at, c, at, at, at), _emit


add_product: Any = intrinsic(_add_product)


def _emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
    a, a_at, a_row, a_step, b, b_at, b_step, c, c_at, c_row, depth = args
    arrays = (a, signature.args[0], a_at), (b, signature.args[4], b_at), (c, signature.args[7], c_at)
    a, b, c = (
        builder.gep(context.make_array(kind)(context, builder, array).data, [start])
        for array, kind, start in arrays
    )

    def vectors(start: Any, offset: Any) -> list[Any]:
        places = (builder.add(offset, offset.type(vector * LANES)) for vector in range(_VECTORS))
        return [builder.bitcast(builder.gep(start, [at]), _vector.as_pointer()) for at in places]

    rows = [depth.type(row) for row in range(ROWS)]
    results = [vectors(c, builder.mul(row, c_row)) for row in rows]
    # LLVM keeps these in registers.
    sums = [[cgutils.alloca_once(builder, _vector) for _ in range(_VECTORS)] for _ in rows]
    pairs = [pair for of_row in zip(results, sums, strict=True) for pair in zip(*of_row, strict=True)]
    for result, total in pairs:
        builder.store(builder.load(result, align=4), total)
    with cgutils.for_range(builder, depth) as loop:
        right = [builder.load(place, align=4) for place in vectors(b, builder.mul(loop.index, b_step))]
        left = builder.gep(a, [builder.mul(loop.index, a_step)])
        for row, totals in zip(rows, sums, strict=True):
            number = builder.load(builder.gep(left, [builder.mul(row, a_row)]))
            first = builder.insert_element(_nothing, number, ir.IntType(32)(0))
            everywhere = builder.shuffle_vector(first, _nothing, _to_all_lanes)
            for of_b, total in zip(right, totals, strict=True):
                product = builder.fmul(everywhere, of_b, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
    for result, total in pairs:
        builder.store(builder.load(total), result, align=4)
    return context.get_dummy_value()


_Floats = NDArray[np.float32]

_matrix, _panels = types.float32[:, ::1], types.float32[:, :, ::1]
_given = types.Tuple([_matrix] * 5 + [_panels] * 2)
_where = types.UniTuple(types.int64, 4)

_f = np.float32
_ONE, _TWO = _f(1), _f(2)
_MINUS_LOG2_E = _f(-1.4426950408889634)
_LARGEST = _f(126)  # 2^±126 are normal numbers; σ is 0 or 1 to the last bit long before
_ROUNDER = _f(3 << 22)  # added to a small number it leaves the nearest integer in the lowest bits
_EXPONENT, _BIAS = np.int32(23), np.int32(127 << 23)
# 2^y ≈ 1 + C1·y + … + C5·y⁵ within ±½: the smallest greatest relative error, 9.1·10⁻⁸, by Lawson's iteration
_C1, _C2, _C3 = _f(0.69314698), _f(0.24022242), _f(0.05550734)
_C4, _C5 = _f(0.00967151), _f(0.00132647)

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

    2^x of an integer is its bits moved into a float's exponent, and of what is left, at most ½, a polynomial.
    In arithmetic that fits vector registers, unlike the library's `exp`.
    """
    x = z * _MINUS_LOG2_E
    x = _LARGEST if x > _LARGEST else x
    x = -_LARGEST if x < -_LARGEST else x
    shifted = x + _ROUNDER
    y = x - (shifted - _ROUNDER)
    power_of_rest = _ONE + y * (_C1 + y * (_C2 + y * (_C3 + y * (_C4 + y * _C5))))
    power = np.int32((_f(shifted).view(np.int32) << _EXPONENT) + _BIAS).view(np.float32)
    return power_of_rest * power


@njit(**_options)
def _aligned(rows: int, columns: int) -> Any:
    """Space from the start of a cache line on: a vector that lies across two takes as long as two."""
    space = np.empty(rows * columns + 16, np.float32)
    start = (64 - space.ctypes.data % 64) % 64 // 4
    return space[start : start + rows * columns].reshape(rows, columns)


@njit(**_options)
def _fold(e_u: _Floats, right_weight: _Floats, product_weight: _Floats, folded: _Floats) -> None:
    """folded[k] = V[k] + W[k]·e_u."""
    d, inner = folded.shape
    for k in range(d):
        for x in range(inner):
            folded[k, x] = right_weight[k, x] + product_weight[k, x] * e_u[x]


@njit(**_options)
def _unfold(
    to_folded: _Floats,
    e_u: _Floats,
    product_weight: _Floats,
    to_e_u: _Floats,
    to_right_weight: _Floats,
    to_product_weight: _Floats,
) -> None:
    """Adds the gradients of what was folded."""
    d, inner = product_weight.shape
    for k in range(d):
        for x in range(inner):
            to_folded_x = to_folded[k, x]
            to_e_u[x] += to_folded_x * product_weight[k, x]
            to_right_weight[k, x] += to_folded_x
            to_product_weight[k, x] += to_folded_x * e_u[x]


@njit(**_options)
def _activate(part_u: _Floats, folded: _Floats, factors_t: _Floats, j: int, z: _Floats) -> None:
    """z[k, i] = a_u[k] + Σ_l folded[k, l]·e_i[l], i in panel j."""
    d, inner = folded.shape
    for k in range(d):
        z[k] = part_u[k]
    for k in range(0, d, ROWS):
        add_product(
            folded,
            k * inner,
            inner,
            1,
            factors_t,
            j * inner * COLUMNS,
            COLUMNS,
            z,
            k * COLUMNS,
            COLUMNS,
            inner,
        )


@njit(types.void(_given, _matrix, _where), **_options)
def score(given: Sequence[_Floats], scores: _Floats, where: Where) -> None:
    """scores[u, i] = Σ_k p[u, k]·q[i, k]·σ(z[u, k, i])² of these rows and panels."""
    p, part, e, right_weight, product_weight, q_t, factors_t = given
    row, row_end, panel, panel_end = where
    d, inner = right_weight.shape
    folded, z, total = _aligned(d, inner), _aligned(d, COLUMNS), _aligned(1, COLUMNS)[0]
    for u in range(row, row_end):
        _fold(e[u], right_weight, product_weight, folded)
        for j in range(panel, panel_end):
            _activate(part[u], folded, factors_t, j, z)
            total[:] = _f(0)
            for k in range(d):
                z_k, p_k, q_k = z[k], p[u, k], q_t[j, k]
                for i in range(COLUMNS):
                    m = _ONE / (_ONE + exp_minus(z_k[i]))
                    total[i] += p_k * q_k[i] * m * m
            found = scores[u, j * COLUMNS : (j + 1) * COLUMNS]
            found[:] = total[: len(found)]


@njit(**_options)
def _go_back(
    z: _Floats,
    p_u: _Floats,
    q_j: _Floats,
    upstream: _Floats,
    to_q_j: _Floats,
    sums_to_p: _Floats,
    sums_to_part: _Floats,
) -> None:
    """z becomes its own gradient, 2·p·q·m²·(1 − m) times that of the score.

    Sums over columns are left as one number for each: adding up lanes takes longer than keeping them.
    """
    for k in range(len(z)):
        z_k, p_k, q_k, to_q_k = z[k], p_u[k], q_j[k], to_q_j[k]
        sum_to_p, sum_to_part = sums_to_p[k], sums_to_part[k]
        for i in range(COLUMNS):
            e = exp_minus(z_k[i])
            m = _ONE / (_ONE + e)
            to_pq = upstream[i] * m * m
            to_q_k[i] += p_k * to_pq
            to_pq *= q_k[i]
            sum_to_p[i] += to_pq
            to_z = _TWO * p_k * to_pq * (e * m)  # 1 − m, without its cancellation
            sum_to_part[i] += to_z
            z_k[i] = to_z


@njit(types.void(_given, _panels, _matrix, _given, _where), **_options)
def differentiate(
    given: Sequence[_Floats], factors: _Floats, grad: _Floats, gradients: Sequence[_Floats], where: Where
) -> None:
    """Adds what these rows and panels contribute to the gradients of what is given, in its order."""
    p, part, e, right_weight, product_weight, q_t, factors_t = given
    to_p, to_part, to_e, to_right_weight, to_product_weight, to_q_t, to_factors_t = gradients
    row, row_end, panel, panel_end = where
    (d, inner), width, panels = right_weight.shape, factors.shape[2], panel_end - panel
    folded, to_folded, upstream = _aligned(d, inner), _aligned(d, width), _aligned(1, COLUMNS)[0]
    z, sums_to_p, sums_to_part = _aligned(d, COLUMNS), _aligned(d, COLUMNS), _aligned(d, COLUMNS)
    # Sums of all rows are taken in two steps, these and then the whole: longer ones lose digits.
    of_right_weight, of_product_weight = _aligned(d, inner), _aligned(d, inner)
    of_q_t, of_factors_t = _aligned(panels * d, COLUMNS), _aligned(panels * inner, COLUMNS)
    for of_block in (of_right_weight, of_product_weight, of_q_t, of_factors_t):
        of_block[:] = _f(0)
    for u in range(row, row_end):
        _fold(e[u], right_weight, product_weight, folded)
        for of_row in (to_folded, sums_to_p, sums_to_part):
            of_row[:] = _f(0)
        for j in range(panel, panel_end):
            of_scores = grad[u, j * COLUMNS : (j + 1) * COLUMNS]
            upstream[: len(of_scores)] = of_scores
            upstream[len(of_scores) :] = _f(0)
            _activate(part[u], folded, factors_t, j, z)
            to_q_j = of_q_t[(j - panel) * d : (j - panel + 1) * d]
            _go_back(z, p[u], q_t[j], upstream, to_q_j, sums_to_p, sums_to_part)
            for x in range(0, inner, ROWS):
                to_x = ((j - panel) * inner + x) * COLUMNS
                add_product(folded, x, 1, inner, z, 0, COLUMNS, of_factors_t, to_x, COLUMNS, d)
            for k in range(0, d, ROWS):
                for x in range(0, width, COLUMNS):
                    from_x, to_x = j * COLUMNS * width + x, k * width + x
                    add_product(
                        z, k * COLUMNS, COLUMNS, 1, factors, from_x, width, to_folded, to_x, width, COLUMNS
                    )
        for k in range(d):
            to_p[u, k] += sums_to_p[k].sum()
            to_part[u, k] += sums_to_part[k].sum()
        _unfold(to_folded, e[u], product_weight, to_e[u], of_right_weight, of_product_weight)
    to_right_weight += of_right_weight
    to_product_weight += of_product_weight
    to_q_t[panel:panel_end] += of_q_t.reshape(panels, d, COLUMNS)
    to_factors_t[panel:panel_end] += of_factors_t.reshape(panels, inner, COLUMNS)
