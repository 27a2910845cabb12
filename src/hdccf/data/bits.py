"""Some bits of a number, moved together: what is left of an id once all that the ids share is left out.

Most processors have an instruction for it. Where there is none, or a slow one, six steps do the same: bits
move down by 1, 2, 4, … 32 places, so that each passes the unwanted ones below it (Hacker's Delight, 7-4).
Loaded only where numba is.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_ALL = (1 << 64) - 1
_STEPS = (1, 2, 4, 8, 16, 32)
_SLOW = {"znver1", "znver2"}  # have the instruction, but take a hundred cycles for it

Wanted = tuple[np.uint64, ...]
"""Which bits are wanted, and of each step those that move."""


def wanted(mask: int) -> Wanted:
    """What `gathered` has to know to move the bits of `mask` together."""
    left, unwanted_below, moves = mask, (~mask << 1) & _ALL, []
    for step in _STEPS:
        odd = unwanted_below
        for distance in _STEPS:
            odd ^= (odd << distance) & _ALL  # in the end: an odd number of unwanted bits stands below
        moving = odd & left
        moves.append(moving)
        left = (left ^ moving) | (moving >> step)
        unwanted_below &= ~odd
    return tuple(np.uint64(bits) for bits in (mask, *moves))


@njit(cache=True, nogil=True)
def by_steps(word: np.uint64, bits: Wanted) -> Any:
    """The wanted bits of a number, moved together at its low end."""
    word &= bits[0]
    for step in range(6):
        moving = word & bits[1 + step]
        word = (word ^ moving) | (moving >> np.uint64(1 << step))
    return word


# Numba's own type for this is that of the function which makes it, not of what is made.
_intrinsic: Callable[[Any], Any] = intrinsic


@_intrinsic
def _extract(typing_context: Any, word: Any, mask: Any) -> Any:
    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        long = ir.IntType(64)
        kind = ir.FunctionType(long, [long, long])
        return builder.call(builder.module.declare_intrinsic("llvm.x86.bmi.pext.64", (), kind), given)

    return types.uint64(types.uint64, types.uint64), make


@njit(cache=True, nogil=True)
def _by_instruction(word: np.uint64, bits: Wanted) -> Any:
    return _extract(word, bits[0])


HAS_INSTRUCTION = bool(llvm.get_host_cpu_features().get("bmi2")) and llvm.get_host_cpu_name() not in _SLOW
gathered = _by_instruction if HAS_INSTRUCTION else by_steps
