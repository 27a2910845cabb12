"""Synthetic data whose true preferences and exposures, and so false negatives, are known.

A pair is observed when it is liked *and* exposed. Both are realised, not only probable, and can be asked for
any pair again; neither is stored. `docs/synthetic.md` has the formulas and the measurements.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from hdccf.console import progress_bar
from hdccf.data.adjacency import places_among
from hdccf.data.interactions import Interactions
from hdccf.data.synthetic_draws import (
    Exposure,
    Floats,
    Indices,
    Tastes,
    WorldSettings,
    density_of_moment,
    draw_exposure,
    draw_histories,
    draw_tastes,
)
from hdccf.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False, repr=False)
class World:
    """A synthetic world: the observed interactions, and the likes and exposures behind them.

    Build it with `hdccf.synthetic_world`. Users and items are the contiguous ones of `interactions`.

    Examples
    --------
    >>> world = hdccf.synthetic_world(10_000, seed=1)
    >>> world.preference(users=[0, 1]).shape
    (2, 398)
    """

    settings: WorldSettings
    interactions: Interactions
    """The observed pairs with times and titles; users without any keep their place."""
    tastes: Tastes
    shown: Exposure

    @property
    def n_users(self) -> int:
        return self.settings.n_users

    @property
    def n_items(self) -> int:
        return self.settings.n_items

    def __repr__(self) -> str:
        asked = ", ".join(f"{name}={value}" for name, value in self.settings.model_dump().items())
        return f"World({self.interactions!r}, {asked})"

    # -- the truth about pairs -------------------------------------------------------------------------------

    def preference(self, users: ArrayLike, items: ArrayLike | None = None) -> Floats:
        """users × items: the probability that the user likes the item; all items where none are given."""
        probabilities: Floats = expit(self.tastes.logits(self._users(users), self._items(items)))
        return probabilities

    def intensity(self, users: ArrayLike, items: ArrayLike | None = None, *, at: float = 1.0) -> Floats:
        """users × items: how likely a liked item is met at a moment of the user's time, from −1 to 1.

        Its mean over the moments is the preference; at 1 its order is the best one for the last interaction.
        """
        if not -1 <= at <= 1:
            raise ConfigError(
                f"at={at} is outside the user's time; give a moment from -1 (first) to 1 (last)"
            )
        tilt = self.tastes.tilt(self._users(users), self._items(items))
        return self.preference(users, items) * density_of_moment(tilt, at)

    def liked(self, users: ArrayLike, items: ArrayLike | None = None) -> NDArray[np.bool_]:
        """users × items: what the user likes, seen or not."""
        return self.tastes.liked(self._users(users), self._items(items))

    def liked_pairs(self, users: ArrayLike, items: ArrayLike) -> NDArray[np.bool_]:
        """The same for pairs: does the n-th user like the n-th item?"""
        return self.tastes.liked(self._users(users), self._items(items), pairs=True)

    # -- the truth about users and items ---------------------------------------------------------------------

    def true_negatives(self, user: int) -> Indices:
        """The items that `user` does not like: none of them was observed."""
        return np.flatnonzero(~self.liked([user])[0])

    def false_negatives(self, user: int) -> Indices:
        """The items that `user` likes but that were not observed, because they were never shown."""
        liked = self.liked([user])[0]
        liked[self.interactions.by_user.of(user)] = False
        return np.flatnonzero(liked)

    @cached_property
    def omega_items(self) -> Floats:
        """ω_u for each user: the share of false negatives among the items that were not observed for u.

        The realised one, by a look at all pairs: about 30 ns a pair.
        """
        return self.omega_items_of(np.arange(self.n_users))

    @cached_property
    def omega_users(self) -> Floats:
        """ω_i for each item: the share of false negatives among the users for whom i was not observed."""
        liked = np.zeros(self.n_items, np.int64)
        for user in range(self.n_users):
            liked += self.liked([user])[0]
        return _share_of_false(liked, self.interactions.by_item.degrees, self.n_users)

    def omega_items_of(self, users: ArrayLike) -> Floats:
        """`omega_items` of some users only, for worlds too large to look at every pair."""
        asked = self._users(users)
        liked = np.array([np.count_nonzero(self.liked([user])) for user in asked], np.int64)
        return _share_of_false(liked, self.interactions.by_user.degrees[asked], self.n_items)

    # -- names -----------------------------------------------------------------------------------------------

    def codes_of(self, data: Interactions) -> tuple[Indices, Indices]:
        """The world's users and items behind those of `data`, which a k-core may have renumbered."""
        world = self.interactions
        found = []
        for own, ids in ((world.user_ids, data.user_ids), (world.item_ids, data.item_ids)):
            codes = places_among(ids, own)
            if codes.null_count():
                raise DataError(
                    f"{codes.null_count():,} ids are not of this world; give interactions made from it"
                )
            found.append(codes.to_numpy().astype(np.int64))
        return found[0], found[1]

    def _users(self, users: ArrayLike) -> Indices:
        return _codes(users, self.n_users, "user")

    def _items(self, items: ArrayLike | None) -> Indices:
        return np.arange(self.n_items) if items is None else _codes(items, self.n_items, "item")


def synthetic_world(
    n_interactions: int = 100_000,
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    exposure: float = 0.0,
    drift: float = 1.0,
    liked: float = 0.1,
    strength: float = 2.0,
    dimensions: int = 8,
    seed: int = 0,
    exposure_seed: int | None = None,
    progress: bool = False,
) -> World:
    """Draws a world whose likes and exposures are known for every pair.

    Parameters
    ----------
    n_interactions
        The expected number of observed pairs.
    n_users, n_items
        Where they are not given they follow from `n_interactions`: 2,000 × 1,000 for 100,000, so that half of
        the liked pairs are observed, and 100 interactions a user in the largest worlds.
    exposure, drift, liked, strength, dimensions, seed, exposure_seed
        As in `WorldSettings`; `exposure_seed` is `seed` where it is not given.
    progress
        Whether to show a progress bar.

    Returns
    -------
    World
        The observed interactions and the truth behind them.

    Examples
    --------
    >>> world = hdccf.synthetic_world(100_000, exposure=0.5, seed=1)
    >>> world.omega_items.mean()
    """
    default_users = max(2, round(2 * max(n_interactions, 0) ** 0.6), n_interactions // 100)
    default_items = max(2, round(10 * max(n_interactions, 0) ** 0.4))
    settings = WorldSettings(
        n_users=default_users if n_users is None else n_users,
        n_items=default_items if n_items is None else n_items,
        n_interactions=n_interactions,
        exposure=exposure,
        drift=drift,
        liked=liked,
        strength=strength,
        dimensions=dimensions,
        seed=seed,
        exposure_seed=seed if exposure_seed is None else exposure_seed,
    )
    tastes = draw_tastes(settings)
    shown = draw_exposure(tastes, settings)
    with progress_bar("drawing interactions", int(shown.starts[-1]), enabled=progress) as advance:
        degrees, items, times = draw_histories(tastes, shown, seed, advance)
    # `draw_histories` gives distinct pairs in order, so `from_codes` would sort tens of millions for nothing.
    observed = Interactions(
        users=np.repeat(np.arange(settings.n_users, dtype=np.int32), degrees),
        items=items,
        times=times,
        counts=np.ones(len(items), np.int32),
        user_ids=_names("u", settings.n_users).rename("user"),
        item_ids=_names("f", settings.n_items).rename("item"),
        titles=film_titles(tastes.genres, seed),
    )
    return World(settings, observed, tastes, shown)


def _share_of_false(liked: Indices, observed: Indices, size: int) -> Floats:
    """(liked − observed) / (all − observed), as every observed pair is liked; 0 where all were observed."""
    return (liked - observed) / np.maximum(size - observed, 1)


def _codes(given: ArrayLike, size: int, kind: str) -> Indices:
    codes = np.atleast_1d(np.asarray(given, np.int64))
    if len(codes) and (codes.min() < 0 or codes.max() >= size):
        raise DataError(
            f"{kind} codes run from {codes.min()} to {codes.max()}; this world has 0 to {size - 1}"
        )
    return codes


def _names(letter: str, n: int) -> pl.Series:
    """u0000, u0001, …: strings of one length, so that their order is that of the codes."""
    width = len(str(n - 1))
    return letter + pl.Series(np.arange(n)).cast(pl.String).str.zfill(width)


# -- titles --------------------------------------------------------------------------------------------------

_FIRST_WORDS = {
    "Thriller": "Silent Cold Hidden Perfect Final Broken Double Vanishing Secret Crooked Sleepless Midnight",
    "Comedy": "Accidental Awkward Reluctant Terrible Borrowed Unlikely Noisy Cheerful Clumsy Spare Lucky",
    "Romance": "Tender Paper Scarlet Endless Summer Whispered Golden Distant Velvet Autumn Foolish Gentle",
    "Science Fiction": "Quantum Orbital Synthetic Parallel Frozen Infinite Lunar Hollow Electric Stellar",
    "Western": "Dusty Lonesome Crimson Iron Wild Last Rusted Lawless Burning Dry Bitter Northern",
    "Documentary": "Living Forgotten Secret Deep Changing Ancient Vanished Modern Human Unseen Fragile",
    "Fantasy": "Enchanted Emerald Sleeping Winged Moonlit Wandering Sunken Crystal Thorned Silver Elder",
    "Horror": "Haunted Crawling Withered Hungry Pale Buried Screaming Cursed Black Rotting Watching Nameless",
    "Adventure": "Lost Uncharted Daring Roaring Stolen Hundred-Day Sunlit Secret Farthest Flying Windward",
    "Drama": "Quiet Ordinary Unspoken Empty Fading Heavy Honest Winter Borrowed Shared Restless Faithful",
}
GENRES = tuple(_FIRST_WORDS)
_SECOND_WORDS = {
    "Thriller": "Harbour Witness Alibi Cipher Stairwell Informant Verdict Corridor Motive Passenger Signal",
    "Comedy": "Wedding Landlord Neighbours Holiday Butler Reunion Detective Orchestra Bakery Cousins",
    "Romance": "Letters Orchard Lighthouse Promise Waltz Balcony Garden Postcard Kiss Vows Serenade Ferry",
    "Science Fiction": "Horizon Colony Engine Paradox Signal Machines Voyager Memory Station Dawn Protocol",
    "Western": "Canyon Saddle Gunsmith Frontier Railroad Sheriff Prairie Stagecoach Spurs Outpost Mesa Rider",
    "Documentary": "Oceans Cities Forests Voices Rivers Glaciers Workshops Migrations Kitchens Archives",
    "Fantasy": "Throne Forest Dragon Gate Prophecy Kingdom Lantern Tower Harp Mirror Sword Cauldron",
    "Horror": "Cellar Nursery Doll Attic Chapel Marsh Lullaby Scarecrow Asylum Well Mask Hollow",
    "Adventure": "Expedition Treasure Island Compass Caravan Temple River Balloon Summit Map Archipelago",
    "Drama": "Daughters House Silence Inheritance Season Teacher Village Fathers Hours Daylight Return",
}
_PATTERNS = ("The {} {}", "{} {}", "Return to the {} {}", "Beyond the {} {}", "A Song for the {} {}")
_FIRST_YEAR, _LAST_YEAR = 1952, 2023


def film_titles(genres: NDArray[np.int32], seed: int) -> pl.Series:
    """A title for each item: `The Silent Harbour (Thriller, 1994)`.

    Names of a genre are drawn without replacement; when all are used, a second part follows, and so on.
    """
    rng = np.random.default_rng([seed, 5])
    years = rng.integers(_FIRST_YEAR, _LAST_YEAR + 1, len(genres))
    titles = np.empty(len(genres), object)
    for code, genre in enumerate(GENRES):
        words = list(product(_PATTERNS, _FIRST_WORDS[genre].split(), _SECOND_WORDS[genre].split()))
        items = np.flatnonzero(genres == code)
        order = rng.permutation(len(words))
        for place, item in enumerate(items):
            part, card = divmod(place, len(words))
            pattern, first, second = words[order[card]]
            name = pattern.format(first, second) + (f", Part {part + 1}" if part else "")
            titles[item] = f"{name} ({genre}, {years[item]})"
    return pl.Series("title", titles.tolist(), pl.String)
