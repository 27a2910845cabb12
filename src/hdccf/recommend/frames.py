"""Answers as data frames, under the ids that people use."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from hdccf.recommend.ids import Codes
from hdccf.recommend.topk import Best

Named = dict[str, pl.Series]
"""The name of a column, and the own id of every contiguous one."""


def listed(whose: Named, what: Named, found: Iterable[Best], titles: pl.Series | None = None) -> pl.DataFrame:
    """Lists as rows of whose, rank, what, score (and title); places that were filled up are left out."""
    ((of, of_ids),), ((entry, entry_ids),) = whose.items(), what.items()
    rows, ranks, chosen = ([np.zeros(0, np.int64)] for _ in range(3))
    scores = [np.zeros(0, np.float32)]
    for best in found:
        n, width = best.items.shape
        rows.append(np.repeat(best.rows.numpy(), width))
        ranks.append(np.tile(np.arange(1, width + 1), n))
        chosen.append(best.items.numpy().ravel())
        scores.append(best.scores.numpy().astype(np.float32, copy=False).ravel())
    score = np.concatenate(scores)
    kept = np.flatnonzero(~np.isneginf(score))
    codes = np.concatenate(chosen)[kept]
    frame = pl.DataFrame(
        {
            of: of_ids.gather(np.concatenate(rows)[kept]),
            "rank": np.concatenate(ranks)[kept],
            entry: entry_ids.gather(codes),
            "score": score[kept],
        }
    )
    return titled(frame, codes, titles)


def titled(frame: pl.DataFrame, items: Codes, titles: pl.Series | None) -> pl.DataFrame:
    """With the titles of the items that its rows are about, where there are any."""
    return frame if titles is None else frame.with_columns(title=titles.gather(items))
