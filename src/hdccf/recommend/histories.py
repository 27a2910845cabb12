"""What a model answers by: all events of the known users, and lists that new ones come with."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from hdccf.data.interactions import Interactions
from hdccf.data.split import PARTS, Split
from hdccf.errors import ConfigError, DataError
from hdccf.recommend.ids import Codes, Ids, Vocabulary

Lists = Sequence[Ids]
"""One list of ids for each new user, or for each new item."""


def all_events(split: Split) -> Interactions:
    """All parts in order of time, or one part after the other where there are no times.

    What is held out is hidden from training, not from the user, who has had it.
    """
    parts = [split.part(name) for name in PARTS]
    times = [part.times for part in parts if part.times is not None]
    return Interactions.from_codes(
        np.concatenate([part.users for part in parts]),
        np.concatenate([part.items for part in parts]),
        user_ids=split.train.user_ids,
        item_ids=split.train.item_ids,
        times=np.concatenate(times) if len(times) == len(parts) else None,
        counts=np.concatenate([part.counts for part in parts]),
        titles=split.train.titles,
    )


def histories_of(lists: Lists, vocabulary: Vocabulary, whose: str) -> Interactions:
    """Lists as the histories of so many new nodes, the last entry the latest.

    A repeat counts once, where it came first, as it does in data that is read.
    """
    if isinstance(lists, str | int) or any(isinstance(some, str | int) for some in lists):
        raise ConfigError(f"give a list of lists, one for each of the new {whose}, as in [[…], […]]")
    codes = [vocabulary.codes(some) for some in lists]
    for number, some in enumerate(codes):
        if not len(some):
            raise DataError(
                f"list {number} is empty, and nothing is known of who had nothing; leave it out, or take "
                "what is popular: hdccf train --model most-popular"
            )
    flat: Codes = np.concatenate([np.zeros(0, np.int64), *codes])
    return Interactions.from_codes(
        np.repeat(np.arange(len(codes)), [len(some) for some in codes]),
        flat,
        user_ids=pl.Series(np.arange(len(codes))),
        item_ids=vocabulary.ids,
        times=np.arange(len(flat)),
    )
