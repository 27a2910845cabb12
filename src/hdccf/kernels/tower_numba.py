"""The compiled loops of NeuMF's perceptron: a few users at a time, from the look-up to the logits and back.

Imported only where numba is installed and there are many numbers to look up (`hdccf.models.tower` decides and
lays the arrays out; the tests hold plain torch against it). float32 only, and arrays in C order, their rows
and columns filled up with zeros to what a product in registers takes. All let go of the interpreter's lock:
each thread takes users of its own, and adds the layers' gradients up by itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from hdccf.kernels.products_numba import COLUMNS, ROWS, add_product

_Floats = NDArray[np.float32]
_Longs = NDArray[np.int64]

_matrix, _vector = types.float32[:, ::1], types.float32[::1]
_index, _table = types.int64[::1], types.int64[:, ::1]
_zero = np.float32(0)

# Sums over a row may be taken in any order, as lanes of a vector register need.
_options: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "arcp", "reassoc"},
}


@njit(**_options)
def _add_rows(a: _Floats, a_at: int, panels: _Floats, c: _Floats, c_at: int, rows: int) -> None:
    """c[c_at + r] += a[a_at + r] @ B of so many rows; B[s, j·COLUMNS + i] is panels[j, s, i]."""
    depth = panels.shape[1]
    for panel in range(panels.shape[0]):
        for row in range(0, rows, ROWS):
            start = (c_at + row) * c.shape[1] + panel * COLUMNS
            at = (a_at + row) * a.shape[1]
            add_product(
                a, at, a.shape[1], 1, panels, panel * depth * COLUMNS, COLUMNS, c, start, c.shape[1], depth
            )


@njit(**_options)
def _add_transposed(a: _Floats, a_at: int, b: _Floats, b_at: int, c: _Floats, rows: int) -> None:
    """c[i, j] += Σ_r a[a_at + r, i]·b[b_at + r, j] of so many rows."""
    wide, width = a.shape[1], b.shape[1]
    for j in range(0, width, COLUMNS):
        for i in range(0, wide, ROWS):
            add_product(
                a, a_at * wide + i, 1, wide, b, b_at * width + j, width, c, i * width + j, width, rows
            )


@njit(**_options)
def _panels(matrix: _Floats) -> Any:
    """A product's right side, so many columns after each other as registers hold."""
    depth, width = matrix.shape
    panels = np.empty((width // COLUMNS, depth, COLUMNS), np.float32)
    for panel in range(len(panels)):
        for row in range(depth):
            for k in range(COLUMNS):
                panels[panel, row, k] = matrix[row, panel * COLUMNS + k]
    return panels


@njit(**_options)
def _rectified(value: np.float32) -> Any:
    return _zero if value <= _zero else value  # what is not a number stays so, and is noticed


@njit(**_options)
def _copy(table: _Floats, row: int, to: _Floats, at: int) -> Any:
    """A row of a table, filled up with zeros; gives its sum of squares."""
    squares, dim = _zero, table.shape[1]
    for k in range(dim):
        to[at, k] = table[row, k]
    for k in range(dim, to.shape[1]):
        to[at, k] = _zero
    for k in range(dim):
        squares += to[at, k] * to[at, k]
    return squares


@njit(**_options)
def _repeat(vector: _Floats, to: _Floats, start: int, stop: int) -> None:
    """A vector in some rows; a loop, as an assignment of arrays takes longer than these numbers."""
    for row in range(start, stop):
        for k in range(len(vector)):
            to[row, k] = vector[k]


@njit(
    types.float64(
        *(_matrix, _matrix, _index, _table, types.UniTuple(types.int64, 2)),
        *(types.UniTuple(_matrix, 3), types.UniTuple(_vector, 3), types.float32),
        *(types.UniTuple(_matrix, 4), _matrix),
    ),
    **_options,
)
def forward(
    of_users: _Floats,
    of_items: _Floats,
    users: _Longs,
    columns: _Longs,
    where: tuple[int, int],
    weights: Sequence[_Floats],
    vectors: Sequence[_Floats],
    bias: float,
    kept: Sequence[_Floats],
    logits: _Floats,
) -> Any:
    """The logits of some of the users, and what the way back needs of them; gives the sum of squares.

    `weights` are W_p, W_q and W₂, `vectors` b₁, b₂ and the head. `kept` are p, q and both layers
    after their rectifiers, of whole groups of ROWS users: what is beyond the last user is zero and stays it.
    """
    by_p, by_q, by_first = [_panels(np.ascontiguousarray(weight.T)) for weight in weights]
    p, q, first, second = kept
    first_bias, second_bias, head = vectors
    n, width = columns.shape
    of_user = np.empty((ROWS, first.shape[1]), np.float32)
    total = np.float64(0)
    for user in range(where[0], where[1], ROWS):
        here, rows = min(ROWS, n - user), ROWS * width
        at = user * width
        p[user + here : user + ROWS] = _zero
        q[at + here * width : at + rows] = _zero
        for b in range(user, user + here):
            squares = _copy(of_users, users[b], p, b)
            for c in range(width):
                squares += _copy(of_items, columns[b, c], q, b * width + c)
            total += squares
        _repeat(first_bias, of_user, 0, ROWS)
        _add_rows(p, user, by_p, of_user, 0, ROWS)
        for b in range(ROWS):
            _repeat(of_user[b], first, at + b * width, at + (b + 1) * width)
        _add_rows(q, at, by_q, first, at, rows)
        _repeat(second_bias, second, at, at + rows)
        for row in range(at, at + rows):
            for k in range(first.shape[1]):
                first[row, k] = _rectified(first[row, k])
        _add_rows(first, at, by_first, second, at, rows)
        for b in range(here):
            for c in range(width):
                logit, row = bias, at + b * width + c
                for k in range(len(head)):
                    second[row, k] = _rectified(second[row, k])
                for k in range(len(head)):
                    logit += head[k] * second[row, k]
                logits[user + b, c] = logit
    return total


@njit(
    types.void(
        *(types.UniTuple(types.int64, 2), types.UniTuple(_matrix, 3), _vector, types.UniTuple(_matrix, 4)),
        *(_matrix, types.float32, types.UniTuple(_matrix, 3)),
        *(types.UniTuple(_vector, 3), types.UniTuple(_matrix, 2)),
    ),
    **_options,
)
def backward(
    where: tuple[int, int],
    weights: Sequence[_Floats],
    head: _Floats,
    kept: Sequence[_Floats],
    slopes: _Floats,
    of_squares: float,
    of_weights: Sequence[_Floats],
    of_vectors: Sequence[_Floats],
    of_rows: Sequence[_Floats],
) -> None:
    """Adds to the layers' gradients what some of the users hand on, and writes those of p and q.

    `of_weights` and `of_vectors` are in their order those of W_p, W_q, W₂ and of b₁, b₂ and the head,
    `of_rows` those of p and of q.
    """
    by_p, by_q, by_first = [_panels(weight) for weight in weights]
    p, q, first, second = kept
    of_first_bias, of_second_bias, of_head = of_vectors
    of_p, of_q = of_rows
    n, width = slopes.shape
    wide, rows = first.shape[1], ROWS * width
    pull = np.float32(2) * of_squares
    of_first, of_second = np.empty((rows, wide), np.float32), np.empty((rows, second.shape[1]), np.float32)
    of_user = np.empty((ROWS, wide), np.float32)
    for user in range(where[0], where[1], ROWS):
        at = user * width
        of_first[:] = _zero
        for row in range(rows):
            b = user + row // width
            slope = slopes[b, row % width] if b < n else _zero
            for k in range(len(head)):
                of_second[row, k] = _zero if second[at + row, k] <= _zero else slope * head[k]
            for k in range(len(head)):
                of_head[k] += slope * second[at + row, k]
            for k in range(len(head)):
                of_second_bias[k] += of_second[row, k]
        _add_rows(of_second, 0, by_first, of_first, 0, rows)
        of_user[:] = _zero
        for row in range(rows):
            b = row // width
            for k in range(wide):
                of_first[row, k] = _zero if first[at + row, k] <= _zero else of_first[row, k]
            for k in range(wide):
                of_user[b, k] += of_first[row, k]
        for b in range(ROWS):
            for k in range(wide):
                of_first_bias[k] += of_user[b, k]
        for b in range(user, user + ROWS):
            for k in range(p.shape[1]):
                of_p[b, k] = pull * p[b, k]
        for row in range(at, at + rows):
            for k in range(q.shape[1]):
                of_q[row, k] = pull * q[row, k]
        _add_rows(of_user, 0, by_p, of_p, user, ROWS)
        _add_rows(of_first, 0, by_q, of_q, at, rows)
        _add_transposed(of_user, 0, p, user, of_weights[0], ROWS)
        _add_transposed(of_first, 0, q, at, of_weights[1], rows)
        _add_transposed(of_second, 0, first, at, of_weights[2], rows)
