"""Compiled loops from the bytes of a plain text file to keys: where its fields end, 16-byte keys, numbers.

Bytes are looked at 64 at a time, numbers are read eight digits at a time, and ids become two 64-bit numbers,
with whatever wide instructions LLVM finds in the processor. Nothing here judges: what is not plain is only
noticed, and the file is then read in another way. Loaded only where numba is; the rest is in
`hdccf.data.plain`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hdccf.data.bits import Wanted
from hdccf.data.kernels import differing, number_places

LONGEST_ID = 15  # the sixteenth byte of a key has the length
LONGEST_NUMBER = 16
TURN = 512  # rows whose keys are read and numbered before the next: they stay in the nearest cache
BEYOND = 64  # so many bytes after the end are looked at, whatever they are
_WIDE = ir.VectorType(ir.IntType(8), BEYOND)
_ZEROS = np.uint64(0x3030303030303030)
# Which bytes of eight belong to a text of so many: of its first eight, and of its second.
FIRST = np.array([(1 << 8 * min(length, 8)) - 1 for length in range(LONGEST_ID + 1)], np.uint64)
SECOND = np.array([(1 << 8 * max(length - 8, 0)) - 1 for length in range(LONGEST_ID + 1)], np.uint64)

# Numba's own type for these is that of the function which makes them, not of what is made.
_intrinsic: Callable[[Any], Any] = intrinsic

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]
_Keys = NDArray[np.uint64]


def _load(context: Any, builder: Any, kind: Any, array: Any, at: Any, wanted: Any) -> Any:
    """What stands at any byte of an array, aligned or not."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.load(builder.bitcast(builder.gep(data, [at]), wanted.as_pointer()), align=1)


@_intrinsic
def _equal(typing_context: Any, data: Any, at: Any, byte: Any) -> Any:
    """Which of 64 bytes are this one: a bit for each."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        block = _load(context, builder, signature.args[0], given[0], given[1], _WIDE)
        nothing = ir.Constant(_WIDE, ir.Undefined)
        one = builder.insert_element(nothing, given[2], ir.Constant(ir.IntType(32), 0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), BEYOND), [0] * BEYOND)
        same = builder.icmp_unsigned("==", block, builder.shuffle_vector(one, nothing, everywhere))
        return builder.bitcast(same, ir.IntType(64))

    return types.uint64(data, types.int64, types.uint8), make


@_intrinsic
def _beyond_ascii(typing_context: Any, data: Any, at: Any) -> Any:
    """Which of 64 bytes are no ASCII: a bit for each."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        block = _load(context, builder, signature.args[0], given[0], given[1], _WIDE)
        return builder.bitcast(
            builder.icmp_signed("<", block, ir.Constant(_WIDE, [0] * BEYOND)), ir.IntType(64)
        )

    return types.uint64(data, types.int64), make


@_intrinsic
def eight(typing_context: Any, data: Any, at: Any) -> Any:
    """Eight bytes as one number, the first of them lowest."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _load(context, builder, signature.args[0], given[0], given[1], ir.IntType(64))

    return types.uint64(data, types.int64), make


@_intrinsic
def _zeros_below(typing_context: Any, bits: Any) -> Any:
    """How many zeros stand below the lowest one."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), make


@_intrinsic
def _ones(typing_context: Any, bits: Any) -> Any:
    """How many ones there are."""

    def make(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.ctpop(given[0])

    return types.int64(types.uint64), make


@njit(cache=True, nogil=True)
def find_ends(data: _Bytes, begin: int, end: int, separator: int, quote: int, ends: _Ints) -> Any:
    """Where the fields of some lines end: how many, on how many lines, and whether all bytes are plain.

    `ends` has room for as many as there are bytes, and for eight more.
    """
    count = lines = 0
    strange = np.uint64(0)
    for at in range(begin, end, BEYOND):
        new_lines = _equal(data, at, np.uint8(10))
        marks = new_lines | _equal(data, at, np.uint8(separator))
        others = _equal(data, at, np.uint8(quote)) | _equal(data, at, np.uint8(13)) | _beyond_ascii(data, at)
        if end - at < BEYOND:
            inside = (np.uint64(1) << np.uint64(end - at)) - np.uint64(1)
            new_lines, marks, others = new_lines & inside, marks & inside, others & inside
        strange |= others
        lines += _ones(new_lines)
        found = _ones(marks)
        # Rarely are there more than eight: writing eight without a look is faster than asking after each.
        for step in range(8):
            ends[count + step] = at + _zeros_below(marks)
            marks &= marks - np.uint64(1)
        for step in range(8, found):
            ends[count + step] = at + _zeros_below(marks)
            marks &= marks - np.uint64(1)
        count += found
    return count, lines, strange == 0


@njit(cache=True, nogil=True)
def _put_key(data: _Bytes, start: Any, length: np.uint64, keys: _Keys, at: Any) -> None:
    keys[at, 0] = eight(data, start) & FIRST[length]
    keys[at, 1] = (eight(data, start + 8) & SECOND[length]) | (length << np.uint64(56))


@njit(cache=True, nogil=True)
def _eight_digits(digits: np.uint64) -> Any:
    """The number that eight digits stand for, and something other than 0 where one of them is no digit."""
    values = digits - _ZEROS
    strange = (values | (values + np.uint64(0x7676767676767676))) & np.uint64(0x8080808080808080)
    # Neighbours are put together: into pairs, and then by two multiplications into all eight.
    values = values * np.uint64(10) + (values >> np.uint64(8))
    even = (values & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    odd = ((values >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return (even + odd) >> np.uint64(32), strange


@njit(cache=True, nogil=True)
def _up_to_eight(data: _Bytes, start: Any, length: int) -> Any:
    """The number of the 1 to 8 digits from `start` on."""
    missing = np.uint64(8 - length)
    digits = (eight(data, start) << (np.uint64(8) * missing)) | (_ZEROS & FIRST[missing])
    return _eight_digits(digits)


@njit(cache=True, nogil=True)
def _whole_number(data: _Bytes, start: Any, length: Any) -> Any:
    """A whole number of 1 to 16 digits, and something other than 0 where one of them is no digit."""
    if length <= 8:
        value, strange = _up_to_eight(data, start, length)
        return np.int64(value), strange
    low, one = _eight_digits(eight(data, start + length - 8))
    high, other = _up_to_eight(data, start, length - 8)
    return np.int64(high) * 100_000_000 + np.int64(low), one | other


@njit(cache=True, nogil=True)
def read_rows(
    data: _Bytes,
    begin: int,
    ends: _Ints,
    first: int,
    last: int,
    columns: Any,
    user_keys: _Keys,
    item_keys: _Keys,
    times: _Longs,
) -> bool:
    """Keys and times of lines `first` to `last` of those that start at `begin`; whether all is plain.

    Their fields end at `ends`. `columns` are their number and the places of user, item and time, -1 for none.
    Not plain is another number of fields, an empty or a long id, a time that is not all digits.
    """
    # Without a sign: Numba need not ask of each place whether it is counted from the end.
    one, width, user, item = np.uint64(1), np.uint64(columns[0]), np.uint64(columns[1]), np.uint64(columns[2])
    timed, time = columns[3] >= 0, np.uint64(max(columns[3], 0))
    strange = np.uint64(0)
    for row in range(np.uint64(last - first)):
        field = (np.uint64(first) + row) * width
        before = np.int64(ends[field - one] if field else begin - 1)
        user_start = (np.int64(ends[field + user - one]) if user else before) + 1
        item_start = (np.int64(ends[field + item - one]) if item else before) + 1
        user_size, item_size = ends[field + user] - user_start, ends[field + item] - item_start
        if (
            not (1 <= user_size <= LONGEST_ID and 1 <= item_size <= LONGEST_ID)
            or data[np.uint64(ends[field + width - one])] != 10
        ):
            return False
        _put_key(data, user_start, np.uint64(user_size), user_keys, row)
        _put_key(data, item_start, np.uint64(item_size), item_keys, row)
        if timed:
            time_start = (np.int64(ends[field + time - one]) if time else before) + 1
            time_size = ends[field + time] - time_start
            if not 1 <= time_size <= LONGEST_NUMBER:
                return False
            times[np.uint64(first) + row], other = _whole_number(data, time_start, time_size)
            strange |= other
    return bool(strange == 0)


@njit(cache=True, nogil=True)
def _fit(keys: _Keys, count: int, known: _Keys, firsts: _Longs, lows: Wanted, highs: Wanted) -> bool:
    """Whether keys differ from a known one only in the bits that places are made of, and all have room."""
    if count == 0 or count + len(keys) > len(firsts):
        return False
    low, high = differing(keys, known[1, 0], known[1, 1])
    return bool((low & ~lows[0]) | (high & ~highs[0]) == 0)


@njit(cache=True, nogil=True)
def number_rows(
    data: _Bytes,
    begin: int,
    ends: _Ints,
    row: int,
    rows: int,
    columns: Any,
    keys: Any,
    users: _Ints,
    items: _Ints,
    times: _Longs,
    of_users: Any,
    of_items: Any,
) -> Any:
    """`read_rows` from `row` on and `number_places`, by turns. Returns the row it came to, and both counts.

    `of_users` and `of_items` are a numberer's state and its places. It stops where these do not do for the
    next `TURN` rows, with their keys in `keys`; where something is not plain, the row is -1.
    """
    before, user_table, user_known, user_firsts, user_count, user_lows, user_highs, user_up = of_users
    _, item_table, item_known, item_firsts, item_count, item_lows, item_highs, item_up = of_items
    before -= row
    while row < rows:
        last = min(row + TURN, rows)
        own, other = keys[0, : last - row], keys[1, : last - row]
        if not read_rows(data, begin, ends, row, last, columns, own, other, times):
            return -1, user_count, item_count
        if not _fit(own, user_count, user_known, user_firsts, user_lows, user_highs):
            break
        if not _fit(other, item_count, item_known, item_firsts, item_lows, item_highs):
            break
        _, user_count = number_places(
            own,
            users[row:last],
            0,
            before + row,
            user_table,
            user_known,
            user_firsts,
            user_count,
            user_lows,
            user_highs,
            user_up,
        )
        _, item_count = number_places(
            other,
            items[row:last],
            0,
            before + row,
            item_table,
            item_known,
            item_firsts,
            item_count,
            item_lows,
            item_highs,
            item_up,
        )
        row = last
    return row, user_count, item_count
