"""Cornac's BPR in its own environment: trains some epochs for every line that asks, and answers what it took.

python cornac_epochs.py FOLDER '{"k": 64, "learning_rate": 0.01, "lambda_reg": 0.01, "num_threads": 2}'

FOLDER has users.npy, items.npy and shape.npy; vectors and biases are left there as p.npy, q.npy and b.npy. A
line of standard input is a number of epochs. Each fit goes on from the vectors of the one before.
"""

import json
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
from cornac.data import Dataset
from cornac.models import BPR

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
seed = options.pop("seed", 0)
users, items = np.load(folder / "users.npy"), np.load(folder / "items.npy")
n_users, n_items = (int(n) for n in np.load(folder / "shape.npy"))
data = Dataset(
    n_users,
    n_items,
    OrderedDict((str(user), user) for user in range(n_users)),
    OrderedDict((str(item), item) for item in range(n_items)),
    (users.astype(np.int32), items.astype(np.int32), np.ones(len(users), np.float32)),
    seed=seed,
)
found = None
for asked, line in enumerate(sys.stdin):
    model = BPR(**options, max_iter=int(line), init_params=found, seed=seed + asked, verbose=False)
    start, processor = time.perf_counter(), time.process_time()
    model.fit(data)
    took = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    found = {"U": model.u_factors, "V": model.i_factors, "Bi": model.i_biases}
    for name, values in zip("pqb", found.values(), strict=True):
        np.save(folder / f"{name}.npy", values)
    print(json.dumps(took), flush=True)
