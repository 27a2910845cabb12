"""A matrix product small enough for vector registers: what `pairwise_kernels` is built from.

numba has no vectors, and a library's product is a call that pays only for more numbers than the nearest cache
holds. Here the instructions are written out for LLVM, so that a product is part of a compiled loop and the
sigmoid finds what it made at hand. How wide the registers are is what numba compiles for.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

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
