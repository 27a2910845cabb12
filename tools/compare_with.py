"""Compares the working tree with another revision: weights, help texts, public names and answers.

    python tools/compare_with.py REV

Both trees run the same probe in processes of their own, on the same machine. Every model is trained for one
epoch with every sampler, user vector and similarity it accepts, with and without numba; the hashes of the
weights must agree. Refactoring keeps every hash. Where a library replaces hand-written arithmetic the hash
changes; the validation metric is printed beside it.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "epochs": 1,
    "embedding_dim": 8,
    "block_users": 32,
    "batch_size": 256,
    "negatives": 16,
    "warm_epochs": 0,
    "update_every": 1,
    "components": 4,
    "validation_metric": "sampled:ndcg@10",
}
VARIED = ("sampler", "user_vector", "history_encoder", "similarity", "start")
# Large enough for the compiled look-ups and the compiled Adam.
LARGE = {"embedding_dim": 512, "batch_size": 32}
MORE: dict[str, list[dict[str, Any]]] = {
    "hdccf": [
        {"sampler": "in-batch", "user_vector": "free", "user_user_weight": 0.1, "item_item_weight": 0.1},
        {"sampler": "in-batch", "user_vector": "free", "similarity": "modulated", "factors": "separate"},
        {"sampler": "uniform", "user_vector": "free", "omega_items": 0.05, "omega_users": 0.05},
        {"sampler": "block", "omega_items": 0.05, "omega_users": 0.05, "user_user_weight": 0.1},
        {"sampler": "pool", "user_vector": "free", "user_side": 0.0, "omega_items": 0.01},
        {"sampler": "pool", "user_vector": "free", "user_side": 0.0, "sparse_updates": True},
        {"sampler": "block", "loss": "bpr"},
        {**LARGE, "sampler": "pool", "user_vector": "free", "user_side": 0.0, "block_users": 16},
        {**LARGE, "sampler": "pool", "user_vector": "free", "user_side": 0.0, "sparse_updates": True},
        {**LARGE, "sampler": "uniform", "user_vector": "free", "negatives": 4, "sparse_updates": True},
        {"sampler": "uniform", "user_vector": "free", "loss": "pointwise"},
        {"sampler": "block", "user_vector": "free", "similarity": "modulated", "hidden": [4]},
        {
            "user_side": 0.0,
            "sampler": "block",
            "schedule": "cosine",
            "optimizer": "adamw",
            "weight_decay": 0.01,
        },
        {"recency_half_life": 5.0, "recency_floor": 0.1, "user_vector": "free"},
    ],
    "pmf": [{**LARGE, "negatives": 2}],
    "ssm": [{**LARGE, "negatives": 4}],
    "svdpp": [LARGE],
    "lightgcn": [LARGE],
    "bpr": [
        LARGE,
        {**LARGE, "l2": 0.01},
        {**LARGE, "sparse_updates": True},
        {"optimizer": "sgd"},
        {"optimizer": "adagrad"},
        {"sparse_updates": True},
        {"l2": 0.01},
    ],
    "neumf": [{"negatives": 4}, LARGE],
}


def cases(name: str, settings: Any) -> list[dict[str, Any]]:
    """Every combination of the settings that choose a sampler, a user vector and a similarity."""
    fields = settings.model_fields
    varied = [key for key in VARIED if key in fields and get_args(fields[key].annotation)]
    options = [get_args(fields[key].annotation) for key in varied]
    small = {key: value for key, value in SMALL.items() if key in fields}
    found = [dict(zip(varied, choice, strict=True)) for choice in itertools.product(*options)]
    if name == "hdccf":  # the pool takes negative items only
        found += [{**case, "user_side": 0.0} for case in found if case["sampler"] == "pool"]
    return [{**small, **case} for case in [*found, *MORE.get(name, [])]]


def digest(tensors: dict[str, Any]) -> str:
    """Of the values alone: parameters may be renamed or stand in another order."""
    hashes = sorted(
        hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for tensor in tensors.values()
    )
    return hashlib.sha256("".join(hashes).encode()).hexdigest()[:16]


def probe(numba: bool, only: list[str]) -> dict[str, str]:
    if not numba:
        sys.modules["numba"] = None  # type: ignore[assignment]
    import torch

    import hdccf
    from hdccf.errors import HdccfError
    from hdccf.models import MODELS

    torch.set_num_threads(1)
    data = hdccf.synthetic_world(n_users=300, n_items=200, n_interactions=4000, seed=3).interactions
    split = hdccf.leave_one_out(data)
    found: dict[str, str] = {"data": str(data.fingerprint)}
    for name, entry in sorted(MODELS.items()):
        if only and name not in only:
            continue
        tried = cases(name, entry.settings)
        for case in tried:
            key = f"{name} {json.dumps({k: v for k, v in case.items() if SMALL.get(k) != v})}"
            try:
                model = hdccf.fit(split, entry.settings(**case), seed=1)
            except HdccfError:
                found[key] = "refused"
                continue
            measured = hdccf.evaluate(
                model, split, "validation", ("full",), beyond_accuracy=False, folder=None
            )
            ndcg = measured.values["full"]["ndcg@10"]
            found[key] = f"{digest(model.model.state_dict())} {ndcg:.4f}"
    if not only:
        found.update(surface(hdccf, split))
    return found


def surface(hdccf: Any, split: Any) -> dict[str, str]:
    """Public names, every --help, and what one run answers."""
    import typer
    from typer.testing import CliRunner

    from hdccf.cli import app

    found = {"__all__": " ".join(sorted(hdccf.__all__))}

    def walk(command: Any, path: tuple[str, ...]) -> None:
        found[f"help of {' '.join(path)}"] = CliRunner().invoke(app, [*path, "--help"]).stdout
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*path, name))

    os.environ.update({"NO_COLOR": "1", "COLUMNS": "100"})
    walk(typer.main.get_command(app), ())
    settings = hdccf.HDCCF(epochs=2, embedding_dim=8)
    with tempfile.TemporaryDirectory() as folder:
        hdccf.fit(split, settings, seed=2, out=f"{folder}/run")
        run = hdccf.load_run(f"{folder}/run")
        users, items = split.train.user_ids.head(5).to_list(), split.train.item_ids.head(5).to_list()
        answers = [
            run.recommend(users, k=5),
            run.recommend_for_items([items[:3]], k=5),
            run.users_for_new_items([users[:3]], k=5),
            run.similar_items(items, k=3),
            run.similar_users(users, k=3),
            run.score(users, items),
            run.explain(users[0]),
        ]
        found["answers"] = "\n".join(str(answer) for answer in answers)
        found["evaluation"] = str(hdccf.evaluate(run, split))
    return found


def run_probe(tree: Path, numba: bool, only: list[str]) -> dict[str, str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--probe", "1" if numba else "0", *only]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, cwd=tree, stdout=subprocess.PIPE, check=True)
    result: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(theirs: dict[str, str], ours: dict[str, str], label: str) -> int:
    different = 0
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        if theirs.get(key) != ours.get(key):
            different += 1
            print(f"DIFFERENT ({label}) {key}\n  before: {theirs.get(key)}\n  now:    {ours.get(key)}")
    refused = sum(value == "refused" for value in ours.values())
    print(f"{label}: {len(theirs)} compared, {refused} refused by both, {different} different", flush=True)
    return different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument(
        "only", nargs="*", help="models; all of them, the help texts and the answers if left out"
    )
    parser.add_argument("--probe", choices=["0", "1"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe is not None:
        only = [name for name in [given.revision, *given.only] if name != "HEAD"]
        print(json.dumps(probe(given.probe == "1", only)))
        return
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", str(tree), given.revision], cwd=ROOT, check=True
        )
        try:
            for numba in (True, False):
                theirs = run_probe(tree, numba, given.only)
                ours = run_probe(ROOT, numba, given.only)
                different += compare(theirs, ours, "with numba" if numba else "without numba")
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
