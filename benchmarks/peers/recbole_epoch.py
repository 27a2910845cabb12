"""RecBole in its own environment: trains an epoch for every line that asks, and answers what it took.

python recbole_epoch.py DATA_FOLDER DATA_SET THREADS

DATA_FOLDER/DATA_SET/DATA_SET.inter has the training pairs. A line of standard input is a JSON object such as
{"model": "BPR", "options": {"train_batch_size": 2048}}; its answer is one line of JSON. A model is built when
it is first asked for and goes on learning from then on. Waiting for a line costs no processor. With "pairs",
the path of a .npy file of users and items, two rows by the data's own ids, the scores of these pairs are left
beside it as scores.npy, NaN where training knew one of the two not; that is in no time that is answered.
"""

import contextlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.data.interaction import Interaction
from recbole.utils import get_model, get_trainer, init_seed
from scipy.sparse import dok_matrix

FIXED = {
    "use_gpu": False,
    "show_progress": False,
    "load_col": {"inter": ["user_id", "item_id"]},
    # All pairs are for training: nothing is evaluated here.
    "eval_args": {"split": {"RS": [1.0, 0.0, 0.0]}, "order": "RO", "group_by": "none", "mode": "full"},
}


PAIRS_AT_ONCE = 1 << 18

# LightGCN fills its matrix by a method that SciPy has since taken away.
setattr(dok_matrix, "_update", lambda self, values: self._dict.update(values))  # noqa: B010


class Epochs:
    """A model of RecBole's with its trainer and its batches."""

    def __init__(self, folder: str, data_set: str, model: str, options: dict[str, Any]) -> None:
        config = Config(model=model, dataset=data_set, config_dict={**FIXED, "data_path": folder, **options})
        init_seed(config["seed"], config["reproducibility"])
        dataset = create_dataset(config)
        self.batches, _, _ = data_preparation(config, dataset)
        net = get_model(config["model"])(config, self.batches._dataset).to(config["device"])
        self.trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, net)
        self.done, self.net, self.dataset = 0, net, dataset
        self.facts = {
            "pairs": len(dataset),
            "users": dataset.user_num - 1,  # the first is padding
            "items": dataset.item_num - 1,
            "batches": len(self.batches),
            "parameters": sum(p.numel() for p in net.parameters()),
            "torch": torch.__version__,
        }

    def train(self) -> dict[str, Any]:
        start, processor = time.perf_counter(), time.process_time()
        loss = self.trainer._train_epoch(self.batches, self.done, show_progress=False)
        taken = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
        self.done += 1
        return {**taken, "loss": loss, **self.facts}

    def score(self, pairs: Path) -> None:
        users, items = np.load(pairs)
        fields, numbers = (self.dataset.uid_field, self.dataset.iid_field), self.dataset.field2token_id
        ids = [
            self._ids(tokens, numbers[field]) for field, tokens in zip(fields, (users, items), strict=True)
        ]
        known = np.flatnonzero((ids[0] > 0) & (ids[1] > 0))
        scores = np.full(len(users), np.nan, np.float32)
        self.net.eval()
        with torch.no_grad():
            for some in np.array_split(known, max(1, len(known) // PAIRS_AT_ONCE)):
                asked = {field: torch.from_numpy(of[some]) for field, of in zip(fields, ids, strict=True)}
                scores[some] = self.net.predict(Interaction(asked)).numpy().reshape(-1)
        np.save(pairs.parent / "scores.npy", scores)

    @staticmethod
    def _ids(tokens: Any, known: dict[str, int]) -> Any:
        """RecBole's numbers of our ids; 0, which is padding, where it has none."""
        distinct, places = np.unique(tokens, return_inverse=True)
        return np.array([known.get(str(token), 0) for token in distinct], np.int64)[places]


def main() -> None:
    folder, data_set, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    answers = sys.stdout
    models: dict[str, Epochs] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        # RecBole prints; only answers may reach standard output.
        with contextlib.redirect_stdout(sys.stderr):
            name = asked["model"]
            if name not in models:
                models[name] = Epochs(folder, data_set, name, asked["options"])
            answer = models[name].train()
            if "pairs" in asked:
                models[name].score(Path(asked["pairs"]))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
