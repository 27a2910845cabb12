"""Cornac's BPR in its own environment: pairs in as .npy, vectors and biases out as .npy.

python cornac_bpr.py FOLDER '{"k": 64, "max_iter": 100, "learning_rate": 0.01, "lambda_reg": 0.01, "seed": 0}'
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
users, items = np.load(folder / "users.npy"), np.load(folder / "items.npy")
n_users, n_items = (int(n) for n in np.load(folder / "shape.npy"))
data = Dataset(
    n_users,
    n_items,
    OrderedDict((str(user), user) for user in range(n_users)),
    OrderedDict((str(item), item) for item in range(n_items)),
    (users.astype(np.int32), items.astype(np.int32), np.ones(len(users), np.float32)),
    seed=options["seed"],
)
model = BPR(**options, num_threads=1, verbose=False)
start = time.perf_counter()
model.fit(data)
seconds = time.perf_counter() - start
np.save(folder / "p.npy", model.u_factors)
np.save(folder / "q.npy", model.i_factors)
np.save(folder / "b.npy", model.i_biases)
print(json.dumps({"seconds": seconds}))
