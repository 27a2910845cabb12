"""Codes of vectors whose errors matter little to the products they are for, compiled.

Imported only where numba is installed (`hdccf.recommend.codes` decides). float32 only, and arrays in C order. Items do
not depend on each other, so codes are the same for any number of threads.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Floats = NDArray[np.float32]

_options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


@njit("void(f4[:,::1], f4[:,:,::1], f4, i8, u1[:,::1], i8, i8)", **_options)
def encode(
    points: _Floats,
    centres: _Floats,
    along: float,
    rounds: int,
    codes: NDArray[np.uint8],
    start: int,
    stop: int,
) -> None:
    """For the points from one to before another, in each part of their numbers the number of a centre.

    First the nearest ones; then, part after part, for so many rounds, what makes ‖r‖² + along·(r·x/‖x‖)²
    smallest, r being what all centres together leave of the point x.
    """
    parts, n_centres, width = centres.shape
    for i in range(start, stop):
        length = np.float32(0)
        for k in range(parts * width):
            length += points[i, k] * points[i, k]
        weight = along / max(length, np.float32(1e-30))
        lengthwise = np.float32(0)  # r·x
        for turn in range(1 + rounds):
            for part in range(parts):
                rest = lengthwise
                if turn > 0:
                    for k in range(width):
                        x = points[i, part * width + k]
                        rest -= (x - centres[part, codes[i, part], k]) * x
                least, best, of_best = np.float32(np.inf), 0, np.float32(0)
                for centre in range(n_centres):
                    square, product = np.float32(0), rest
                    for k in range(width):
                        x = points[i, part * width + k]
                        r = x - centres[part, centre, k]
                        square += r * r
                        product += r * x
                    if turn > 0:
                        square += weight * product * product
                    if square < least:
                        least, best, of_best = square, centre, product
                codes[i, part] = best
                lengthwise = of_best
