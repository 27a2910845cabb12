"""Keys are numbered in order of first appearance, whichever table they go through: against a dictionary."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hdccf.data import compiled

pytest.importorskip("numba")
bits = pytest.importorskip("hdccf.data.bits")

words = st.integers(0, 2**64 - 1)


def literally(word: int, mask: int) -> int:
    """The bits of a number where the mask has ones, moved together."""
    places = [place for place in range(64) if mask >> place & 1]
    return sum((word >> place & 1) << rank for rank, place in enumerate(places))


@settings(deadline=None)
@given(words, st.one_of(words, st.sampled_from([0, 1, 2**63, 2**64 - 1, 0x0F0F0F0F0F000000])))
def test_bits_are_moved_together(word: int, mask: int) -> None:
    wanted = bits.wanted(mask)
    assert int(bits.by_steps(np.uint64(word), wanted)) == literally(word, mask)
    assert int(bits.gathered(np.uint64(word), wanted)) == literally(word, mask)


def keys_of(block: Sequence[int]) -> NDArray[np.uint64]:
    return np.array([(key & 2**64 - 1, key >> 64) for key in block], np.uint64).reshape(-1, 2)


def numbered(blocks: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Of each key its number, and of each number the key and the row where it was first seen."""
    known: dict[int, tuple[int, int]] = {}
    for row, key in enumerate(key for block in blocks for key in block):
        known.setdefault(key, (len(known), row))
    codes = [known[key][0] for block in blocks for key in block]
    return codes, list(known), [row for _, row in known.values()]


def assert_numbered(numberer: compiled.Numberer, codes: list[int], blocks: Sequence[Sequence[int]]) -> None:
    expected, keys, firsts = numbered(blocks)
    assert codes == expected
    assert [int(low) | int(high) << 64 for low, high in numberer.keys] == keys
    assert numberer.firsts[: numberer.count].tolist() == firsts


# Keys of few differing bits, of others that come later, and of so many that only a hash table will do.
few = st.integers(0, 15).map(lambda value: 0x7573_6572 << 96 | (value & 3) << 70 | (value >> 2) << 9)
later = st.integers(0, 63).map(lambda value: 0x7573_6572 << 96 | value << 60)
blocks_of_keys = st.lists(
    st.lists(st.one_of(few, later, st.integers(0, 2**128 - 2)), max_size=12)
    | st.lists(few, max_size=12)
    | st.lists(later, max_size=12),
    max_size=6,
)


def add(numberer: compiled.Numberer, blocks: Sequence[Sequence[int]]) -> list[int]:
    codes = [np.empty(len(block), np.int32) for block in blocks]
    for block, own in zip(blocks, codes, strict=True):
        numberer.add(keys_of(block), own)
    return [int(code) for own in codes for code in own]


@settings(deadline=None)
@given(blocks_of_keys)
def test_any_keys_in_any_blocks(blocks: list[list[int]]) -> None:
    numberer = compiled.Numberer()
    assert_numbered(numberer, add(numberer, blocks), blocks)


@settings(deadline=None)
@given(blocks_of_keys, blocks_of_keys)
def test_one_takes_what_another_has_seen(first: list[list[int]], second: list[list[int]]) -> None:
    ahead, behind = compiled.Numberer(), compiled.Numberer()
    own, others = add(ahead, first), add(behind, second)
    numbers = ahead.take(behind)
    assert_numbered(ahead, own + [int(numbers[code]) for code in others], [*first, *second])


@pytest.mark.parametrize(("spread", "few_bits"), [(1, True), (2**40 + 1, False)])
def test_more_keys_than_there_was_room_for(
    monkeypatch: pytest.MonkeyPatch, spread: int, few_bits: bool
) -> None:
    monkeypatch.setattr(compiled, "_ROOM", 4)
    rng = np.random.default_rng(0)
    blocks = [[int(value) * spread for value in rng.integers(0, 5_000, 3_000)] for _ in range(4)]
    numberer = compiled.Numberer()
    assert_numbered(numberer, add(numberer, blocks), blocks)
    assert numberer.few is few_bits


def test_ids_that_differ_in_digits_need_no_hashes() -> None:
    texts = [f"user_{number:07d}".encode().ljust(15, b"\0") + b"\x0c" for number in range(99_999)]
    numberer = compiled.Numberer()
    numberer.add(np.frombuffer(b"".join(texts), np.uint64).reshape(-1, 2), np.empty(len(texts), np.int32))
    assert numberer.few
    assert numberer.count == len(texts)
