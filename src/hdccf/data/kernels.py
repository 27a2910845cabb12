"""Compiled loops for large sources: one pass each, without the temporaries that whole-array steps need.

This file is imported only where numba is installed and a source is large (`hdccf.data.compiled` decides).
Every kernel has a NumPy way elsewhere that gives the same, which the tests hold against it. All of them let
go of the interpreter's lock, so that two threads can work on two halves.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hdccf.data.bits import Wanted, gathered

_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]
_Keys = NDArray[np.uint64]


BLOCK = 512  # keys that are looked up at a time
NOBODY = np.uint64(0xFFFFFFFFFFFFFFFF)  # twice, this is no id's key: it stands where an empty slot leads


@njit(cache=True, nogil=True)
def _slot(low: np.uint64, high: np.uint64, slots: int) -> Any:
    mixed = (low * np.uint64(0x9E3779B97F4A7C15)) ^ (high * np.uint64(0xD6E8FEB86659FD93))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32)) & (slots - 1)


@njit(cache=True, nogil=True)
def fill_table(table: _Ints, known: _Keys, count: int) -> None:
    """A place of the empty table for each known key. The first is `known[1]`: 0 means an empty slot."""
    for number in range(1, count + 1):
        slot = _slot(known[number, 0], known[number, 1], len(table))
        while table[slot]:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = number


@njit(cache=True, nogil=True)
def _find(low: np.uint64, high: np.uint64, table: _Ints, known: _Keys, count: int) -> Any:
    """The number of a key, from 1; one that is new gets the next, `count + 1`."""
    slot = _slot(low, high, len(table))
    while table[slot]:
        number = table[slot]
        if known[number, 0] == low and known[number, 1] == high:
            return number
        slot = (slot + 1) & (len(table) - 1)
    table[slot] = count + 1
    known[count + 1, 0] = low
    known[count + 1, 1] = high
    return count + 1


@njit(cache=True, nogil=True)
def _number_block(
    keys: _Keys,
    codes: _Ints,
    row: int,
    before: int,
    table: _Ints,
    known: _Keys,
    firsts: _Longs,
    count: int,
    found: _Ints,
) -> Any:
    """Numbers up to `BLOCK` keys, whose codes stand from `row` on, and gives the new count; all have room.

    The table and the known keys are far larger than the nearest cache. The first two loops ask for all that
    they need without waiting for an answer, so that the misses overlap; few keys are left for the third.
    """
    for at in range(len(keys)):
        found[at] = table[_slot(keys[at, 0], keys[at, 1], len(table))]
    missed = 0
    for at in range(len(keys)):
        number = found[at]
        codes[row + at] = number - 1
        found[missed] = at
        missed += (known[number, 0] != keys[at, 0]) | (known[number, 1] != keys[at, 1])
    for at in found[:missed]:
        number = _find(keys[at, 0], keys[at, 1], table, known, count)
        codes[row + at] = number - 1
        if number > count:
            firsts[count] = before + row + at
            count = number
    return count


@njit(cache=True, nogil=True)
def number_keys(
    keys: _Keys, codes: _Ints, row: int, before: int, table: _Ints, known: _Keys, firsts: _Longs, count: int
) -> Any:
    """Numbers 16-byte keys from `row` on in order of first appearance, after `count` that are known.

    `firsts` gets the row where each was new, counted with the `before` that came before. Returns the row it
    came to, which is not the end where there is no room for another block, and the new count.
    """
    found = np.empty(BLOCK, np.int32)
    while row < len(keys) and count + BLOCK <= len(firsts):
        block = keys[row : row + BLOCK]
        count = _number_block(block, codes, row, before, table, known, firsts, count, found)
        row += len(block)
    return row, count


@njit(cache=True, nogil=True)
def differing(keys: _Keys, low: np.uint64, high: np.uint64) -> Any:
    """The bits in which any of the keys differs from one, of both its halves."""
    lows, highs = np.uint64(0), np.uint64(0)
    for row in range(len(keys)):
        lows |= keys[row, 0] ^ low
        highs |= keys[row, 1] ^ high
    return lows, highs


@njit(cache=True, nogil=True)
def _place(low: np.uint64, high: np.uint64, lows: Wanted, highs: Wanted, up: np.uint64) -> Any:
    return gathered(low, lows) | (gathered(high, highs) << up)


@njit(cache=True, nogil=True)
def fill_places(table: _Ints, known: _Keys, count: int, lows: Wanted, highs: Wanted, up: np.uint64) -> None:
    """The number of each known key, from 1, at the place that its differing bits say."""
    for number in range(1, count + 1):
        table[_place(known[number, 0], known[number, 1], lows, highs, up)] = number


@njit(cache=True, nogil=True)
def number_places(
    keys: _Keys,
    codes: _Ints,
    row: int,
    before: int,
    table: _Ints,
    known: _Keys,
    firsts: _Longs,
    count: int,
    lows: Wanted,
    highs: Wanted,
    up: np.uint64,
) -> Any:
    """`number_keys` for keys that differ in few bits: these alone are a key's place in the table.

    `lows` and `highs` are those bits of both halves, the second half's go `up` by as many as the first has.
    """
    # Without a sign: Numba need not ask of each place whether it is counted from the end.
    at, end = np.uint64(row), np.uint64(len(keys))
    while at < end and count < len(firsts):
        low, high = keys[at, 0], keys[at, 1]
        place = _place(low, high, lows, highs, up)
        number = table[place]
        if not number:
            firsts[count] = before + np.int64(at)
            count += 1
            known[count, 0] = low
            known[count, 1] = high
            number = table[place] = count
        codes[at] = number - 1
        at += np.uint64(1)
    return np.int64(at), count


@njit(cache=True, nogil=True)
def longest_text(views: _Keys) -> Any:
    """The length of the longest text; a view starts with it, in four bytes."""
    longest = np.uint64(0)
    for row in range(len(views)):
        longest = max(longest, views[row, 0] & np.uint64(0xFFFFFFFF))
    return longest


@njit(cache=True, nogil=True)
def renumber(codes: _Ints, numbers: _Ints) -> None:
    """Each code becomes the number that stands for it; in place."""
    for row in range(len(codes)):
        codes[row] = numbers[np.uint64(codes[row])]


@njit(cache=True, nogil=True)
def count_codes(codes: _Ints, counts: _Longs) -> None:
    """Adds up how often each code occurs."""
    for code in codes:
        counts[code] += 1


@njit(cache=True, nogil=True)
def place_rows(
    users: _Ints,
    items: _Ints,
    times: _Longs,
    cursor: _Longs,
    their_items: _Ints,
    their_times: _Longs,
) -> None:
    """Each row to the next place of its user; `times` may be empty. `cursor` moves on."""
    timed = len(times) > 0
    for row in range(len(users)):
        place = cursor[users[row]]
        cursor[users[row]] = place + 1
        their_items[place] = items[row]
        if timed:
            their_times[place] = times[row]


@njit(cache=True, nogil=True)
def sort_within(starts: _Longs, first: int, last: int, items: _Ints, times: _Longs) -> None:
    """The rows of users `first` to `last` in order of time, those of the same time in order of arrival."""
    for user in range(first, last):
        begin, end = starts[user], starts[user + 1]
        for row in range(begin + 1, end):
            if times[row] < times[row - 1]:
                order = np.argsort(times[begin:end], kind="mergesort")
                items[begin:end] = items[begin:end][order]
                times[begin:end] = times[begin:end][order]
                break


@njit(cache=True, nogil=True)
def collapse(
    starts: _Longs,
    first: int,
    last: int,
    n_items: int,
    items: _Ints,
    times: _Longs,
    counts: _Ints,
    kept_users: _Ints,
    kept_items: _Ints,
    kept_times: _Longs,
    kept_counts: _Ints,
    degrees: _Longs,
    of_item: _Longs,
) -> Any:
    """Users `first` to `last` without repeated pairs, moved together; how many pairs remain.

    The kept arrays may be the given ones. `times` and `counts` may be empty: there are none, and each is one.
    """
    at = np.full(n_items, -1, np.int64)
    begin = starts[first]
    place = begin
    timed, counted = len(times) > 0, len(counts) > 0
    for user in range(first, last):
        own = place
        for row in range(starts[user], starts[user + 1]):
            item = items[row]
            count = counts[row] if counted else np.int32(1)
            # Where the item stood last: within this user's kept rows it is a repeat.
            if at[item] >= own:
                kept_counts[at[item]] += count
                continue
            at[item] = place
            kept_users[place] = user
            kept_items[place] = item
            if timed:
                kept_times[place] = times[row]
            kept_counts[place] = count
            of_item[item] += 1
            place += 1
        degrees[user] = place - own
    return place - begin


@njit(cache=True, nogil=True)
def turn(
    users: _Ints, items: _Ints, first: int, last: int, cursor: _Longs, neighbours: _Ints, rows: _Ints
) -> None:
    """Rows `first` to `last`, sorted by user, to the next place of their item."""
    for row in range(first, last):
        place = cursor[items[row]]
        cursor[items[row]] = place + 1
        neighbours[place] = users[row]
        rows[place] = row
