"""Compiled loops that bring rows to their users, drop repeats and turn the result by item, bucket by bucket.

Sending each row straight to its user's next place touches another cache line for nearly every row. Here rows
go first to one of a few hundred buckets, each with the rows of some neighbouring users, whose ends all stay
in the nearest cache; then every bucket is put in order while it is in the second. A row is one 64-bit record:
user, time and item, without the bits that its bucket tells. `hdccf.data.arrange` chooses the widths. Places
are numbers without a sign, so that Numba need not ask whether they count from the end. Loaded only where it
is.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]


@njit(cache=True, nogil=True)
def count_buckets(codes: _Ints, shift: int, counts: _Longs) -> None:
    """Adds up how many codes fall into each bucket."""
    for code in codes:
        counts[np.uint64(code >> shift)] += 1


@njit(cache=True, nogil=True)
def send_to_users(
    users: _Ints,
    items: _Ints,
    times: _Longs,
    shift: int,
    lowest: int,
    unit: int,
    time_bits: int,
    item_bits: int,
    cursor: _Longs,
    records: _Longs,
) -> Any:
    """Each row to the next place of its user's bucket; whether times, which may be empty, never go back."""
    low = (1 << shift) - 1
    timed = len(times) > 0
    back = False
    before = times[0] if timed else 0
    for row in range(len(users)):
        user = np.int64(users[row])
        record = user & low
        if timed:
            moment = times[row]
            back |= moment < before
            before = moment
            passed = moment - lowest
            if unit > 1:
                passed //= unit
            record = (record << time_bits) | passed
        bucket = np.uint64(user >> shift)
        place = cursor[bucket]
        cursor[bucket] = place + 1
        records[np.uint64(place)] = (record << item_bits) | items[row]
    return not back


@njit(cache=True, nogil=True)
def _by_user(
    records: _Longs, begin: int, end: int, user_shift: int, low: int, cursor: _Longs, sorted_: _Longs
) -> None:
    """A bucket's records by user, in order of arrival; afterwards `cursor` has where each user's end."""
    cursor[:] = 0
    for row in range(np.uint64(begin), np.uint64(end)):
        cursor[np.uint64(((records[row] >> user_shift) & low) + 1)] += 1
    for user in range(1, len(cursor)):
        cursor[user] += cursor[user - 1]
    for row in range(np.uint64(begin), np.uint64(end)):
        own = np.uint64((records[row] >> user_shift) & low)
        place = cursor[own]
        cursor[own] = place + 1
        sorted_[np.uint64(place)] = records[row]


@njit(cache=True, nogil=True)
def _sort_by_time(records: _Longs, item_bits: int, spare: _Longs) -> None:
    """One user's records in order of time, those of the same time in order of arrival.

    Runs are merged, back and forth between the records and as many spare places. NumPy's sorting, which would
    do as well, takes four seconds to compile.
    """
    rows = len(records)
    row = 1
    while row < rows and records[row - 1] >> item_bits <= records[row] >> item_bits:
        row += 1
    if row >= rows:
        return
    size = 1
    given, merged = records, spare
    while size < rows:
        for begin in range(0, rows, 2 * size):
            left, middle, end = begin, min(begin + size, rows), min(begin + 2 * size, rows)
            right = middle
            for place in range(begin, end):
                if right == end or (left < middle and given[left] >> item_bits <= given[right] >> item_bits):
                    merged[place] = given[left]
                    left += 1
                else:
                    merged[place] = given[right]
                    right += 1
        given, merged = merged, given
        size *= 2
    for row in range(rows):
        records[row] = given[row]


@njit(cache=True, nogil=True)
def _move_up(
    first: Any, last: Any, by: Any, users: _Ints, items: _Ints, times: _Longs, counts: _Ints
) -> None:
    """Rows `first` to `last` to places that may overlap with their own."""
    for row in range(last - 1, first - 1, -1):
        users[row + by] = users[row]
        items[row + by] = items[row]
        counts[row + by] = counts[row]
    if len(times):
        for row in range(last - 1, first - 1, -1):
            times[row + by] = times[row]


@njit(cache=True, nogil=True)
def keep_firsts(
    records: _Longs,
    starts: _Longs,
    first: int,
    last: int,
    down: bool,
    shift: int,
    time_bits: int,
    item_bits: int,
    earliest: int,
    tick: int,
    ordered: bool,
    kept_users: _Ints,
    kept_items: _Ints,
    kept_times: _Longs,
    kept_counts: _Ints,
    degrees: _Longs,
    of_item: _Ints,
) -> Any:
    """Buckets `first` to `last` in order of user and time without repeated pairs; how many pairs remain.

    A record's time counts ticks since `earliest`. The pairs stand together, from `starts[first]` on; with
    `down` the last bucket is taken first and they end at `starts[last]`: so two threads leave no gap.
    """
    at = np.full(len(of_item), -1, np.int32)
    low, item_low, time_low = (1 << shift) - 1, (1 << item_bits) - 1, (1 << time_bits) - 1
    timed = len(kept_times) > 0
    largest = 0
    for bucket in range(first, last):
        largest = max(largest, starts[bucket + 1] - starts[bucket])
    own_rows, cursor = np.empty(largest, np.int64), np.empty((1 << shift) + 1, np.int64)
    spare = np.empty(0 if ordered else largest, np.int64)
    kept: Any = 0
    edge = starts[last] if down else starts[first]
    for step in range(last - first):
        bucket = last - 1 - step if down else first + step
        _by_user(records, starts[bucket], starts[bucket + 1], time_bits + item_bits, low, cursor, own_rows)
        begin = edge - (starts[bucket + 1] - starts[bucket]) if down else edge
        ahead = begin - kept
        row = 0
        for user in range(bucket << shift, min((bucket + 1) << shift, len(degrees))):
            own, end = kept, cursor[user & low]
            if not ordered:
                _sort_by_time(own_rows[row:end], item_bits, spare)
            for record in own_rows[row:end]:
                item = np.uint64(record & item_low)
                # Which pair the item was in last: among this user's it is a repeat.
                if at[item] >= own:
                    kept_counts[at[item] + ahead] += 1
                    continue
                at[item] = kept
                place = np.uint64(kept + ahead)
                kept_users[place] = user
                kept_items[place] = item
                if timed:
                    kept_times[place] = ((record >> item_bits) & time_low) * tick + earliest
                kept_counts[place] = 1
                of_item[item] += 1
                kept += 1
            row = end
            degrees[user] = kept - own
        after = kept + ahead
        if down and after < edge:
            _move_up(begin, after, edge - after, kept_users, kept_items, kept_times, kept_counts)
        edge = edge - (after - begin) if down else after
    return kept


@njit(cache=True, nogil=True)
def send_to_items(
    users: _Ints,
    items: _Ints,
    first: int,
    last: int,
    shift: int,
    user_bits: int,
    row_bits: int,
    cursor: _Longs,
    records: _Longs,
) -> None:
    """Rows `first` to `last` as records of item, user and row to the next place of their item's bucket."""
    low = (1 << shift) - 1
    for row in range(first, last):
        item = np.int64(items[row])
        bucket = np.uint64(item >> shift)
        place = cursor[bucket]
        cursor[bucket] = place + 1
        records[np.uint64(place)] = ((((item & low) << user_bits) | users[row]) << row_bits) | row


@njit(cache=True, nogil=True)
def place_by_item(
    records: _Longs,
    starts: _Longs,
    first: int,
    last: int,
    shift: int,
    user_bits: int,
    row_bits: int,
    cursor: _Longs,
    neighbours: _Ints,
    rows: _Ints,
) -> None:
    """The records of buckets `first` to `last` to the next place of their item."""
    user_low, row_low = (1 << user_bits) - 1, (1 << row_bits) - 1
    for bucket in range(first, last):
        base = bucket << shift
        for record in records[starts[bucket] : starts[bucket + 1]]:
            item = np.uint64(base + (record >> (user_bits + row_bits)))
            place = np.uint64(cursor[item])
            cursor[item] = place + np.uint64(1)
            neighbours[place] = (record >> row_bits) & user_low
            rows[place] = record & row_low
