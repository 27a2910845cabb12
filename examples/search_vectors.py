"""Searches exported vectors with faiss, without hdccf: the product of two points is the model's score.

    hdccf export runs/films --out vectors --format numpy
    python examples/search_vectors.py vectors [USER …]

Other vector stores load the same points: `point` in items.parquet, compared by inner product.
"""

import argparse
from pathlib import Path

import faiss
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what hdccf export --format numpy wrote")
    parser.add_argument("users", nargs="*", help="ids; the first user if not given")
    parser.add_argument("--k", type=int, default=5)
    options = parser.parse_args()
    user_ids, items_ids, users, items = (
        np.load(options.folder / f"{name}.npy", allow_pickle=False)
        for name in ("users_id", "items_id", "users_point", "items_point")
    )
    index = faiss.IndexFlatIP(items.shape[1])
    index.add(items)
    known = user_ids.astype(str).tolist()
    asked = options.users or known[:1]
    scores, found = index.search(users[[known.index(user) for user in asked]], options.k)
    for user, row, best in zip(asked, scores, found, strict=True):
        print(
            f"for {user}: "
            + ", ".join(f"{items_ids[n]} {score:.3f}" for n, score in zip(best, row, strict=True))
        )


if __name__ == "__main__":
    main()
