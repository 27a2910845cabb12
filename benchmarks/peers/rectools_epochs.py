"""RecTools' SASRec in its own environment: an epoch for every line that asks, and an answer what it took.

python rectools_epochs.py FOLDER '{"seed": 0, "threads": 1, "n_factors": 64, "session_max_len": 100}'

FOLDER has users.npy and items.npy, each user's training items in order of time, and shape.npy. Vectors of all
users and items are left there as p.npy and q.npy: NaN for those that training did not know. Making them is in
no time that is answered. Options other than seed and threads are SASRecModel's.
"""

import contextlib
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pytorch_lightning import seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


def read_events(folder: Path) -> Any:
    """One row a training pair; its place in the file stands for the time, as ties have an order there."""
    users, items = np.load(folder / "users.npy"), np.load(folder / "items.npy")
    times = pd.Timestamp(2000, 1, 1) + pd.to_timedelta(np.arange(len(users)), unit="s")
    columns = (Columns.User, Columns.Item, Columns.Weight, Columns.Datetime)
    return pd.DataFrame(dict(zip(columns, (users, items, np.ones(len(users)), times), strict=True)))


def write_vectors(model: Any, dataset: Any, folder: Path) -> None:
    """The user's last state and the item's embedding: their dot product is the model's score."""
    n_users, n_items = (int(n) for n in np.load(folder / "shape.npy"))
    preparator = model.data_preparator
    asked = preparator.transform_dataset_u2i(dataset, np.arange(n_users))
    loader = preparator.get_dataloader_recommend(asked, model.recommend_batch_size)
    p, q = (x.numpy() for x in model.lightning_model._get_user_item_embeddings(loader, "cpu"))
    known = preparator.get_known_items_sorted_internal_ids()
    for name, size, ids, rows in (
        ("p", n_users, asked.user_id_map.get_external_sorted_by_internal(), p),
        ("q", n_items, preparator.get_known_item_ids(), q[known]),
    ):
        vectors = np.full((size, rows.shape[1]), np.nan, np.float32)
        vectors[ids.astype(np.int64)] = rows
        np.save(folder / f"{name}.npy", vectors)


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(options.pop("threads"))
    seed_everything(options.pop("seed"))
    dataset = Dataset.construct(read_events(folder))
    model, answers = SASRecModel(**options), sys.stdout
    for _ in sys.stdin:
        # Lightning prints; only answers may reach standard output.
        with contextlib.redirect_stdout(sys.stderr):
            start, processor = time.perf_counter(), time.process_time()
            model.fit_partial(dataset, min_epochs=1, max_epochs=1)
            took = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
            write_vectors(model, dataset, folder)
        print(json.dumps(took), file=answers, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    main()
