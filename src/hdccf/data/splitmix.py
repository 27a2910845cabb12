"""Counter-based random numbers: SplitMix64 (Steele, Lea and Flood, 2014)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


def mix(words: Words) -> Words:
    """SplitMix64's finaliser: each bit of the input moves half of the output's. Works in place."""
    words ^= words >> np.uint64(30)
    words *= _FIRST
    words ^= words >> np.uint64(27)
    words *= _SECOND
    words ^= words >> np.uint64(31)
    return words


def words_at(key: int, places: NDArray[np.integer[Any]]) -> Words:
    """Entry number `places` of the sequence that belongs to `key`."""
    words = places.astype(np.uint64)
    words *= _GOLDEN
    words += np.uint64(key)
    return mix(words)


def uniforms(words: Words) -> NDArray[np.float64]:
    """Numbers in [0, 1), from the upper 53 bits."""
    numbers: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64)
    numbers *= _TO_UNIT
    return numbers


def key_of(seed: int, purpose: str) -> int:
    """A key for one purpose under a seed, so that different purposes share no numbers."""
    state = np.random.SeedSequence([seed, *purpose.encode()])
    return int(state.generate_state(1, np.uint64)[0])
