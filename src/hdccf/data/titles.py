"""Titles that read like films, each with its genre and year, no two alike."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

GENRES = (
    "Thriller",
    "Comedy",
    "Romance",
    "Science Fiction",
    "Western",
    "Documentary",
    "Fantasy",
    "Horror",
    "Adventure",
    "Drama",
)

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
_PATTERNS = (
    "The {a} {b}",
    "{a} {b}",
    "Return to the {a} {b}",
    "Beyond the {a} {b}",
    "A Song for the {a} {b}",
)
_FIRST_YEAR, _LAST_YEAR = 1952, 2023


def film_titles(genres: NDArray[np.int32], seed: int) -> pl.Series:
    """A title for each item: `The Silent Harbour (Thriller, 1994)`.

    Names of a genre are dealt out like cards; when the pack is through, a second part follows, and so on.
    """
    rng = np.random.default_rng([seed, 5])
    years = rng.integers(_FIRST_YEAR, _LAST_YEAR + 1, len(genres))
    titles = np.empty(len(genres), object)
    for code, genre in enumerate(GENRES):
        items = np.flatnonzero(genres == code)
        pack = np.array(_names(genre), object)[rng.permutation(len(_names(genre)))]
        part, card = np.divmod(np.arange(len(items)), len(pack))
        parts = np.array(
            ["", *(f", Part {number}" for number in range(2, int(part.max(initial=0)) + 2))], object
        )
        titles[items] = pack[card] + parts[part] + f" ({genre}, "
    return pl.Series("title", titles.tolist(), pl.String) + pl.Series(years).cast(pl.String) + ")"


def _names(genre: str) -> list[str]:
    firsts, seconds = _FIRST_WORDS[genre].split(), _SECOND_WORDS[genre].split()
    return [pattern.format(a=a, b=b) for pattern in _PATTERNS for a in firsts for b in seconds]
