"""Everything that the tests of this folder want of Ray, in one process and on one cluster of two nodes.

python scenario.py OUT writes what happened into OUT: starting Ray takes seconds, so it is started once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import faults
import ray
from probing import probe
from ray import train
from ray.cluster_utils import Cluster
from ray.train.torch import TorchConfig, TorchTrainer

from graphs import small_split
from hdccf.config import FitOptions
from hdccf.data.split import Split
from hdccf.distributed import driver, inference, worker
from hdccf.distributed.inference import ranked_together
from hdccf.distributed.store import write_store
from hdccf.evaluation.evaluation import evaluate
from hdccf.models.hdccf.settings import HDCCF
from hdccf.recommend.recommender import load_run
from hdccf.recommend.run_folder import Cluster as Workers
from hdccf.recommend.run_folder import RunFolder

SETTINGS = HDCCF(
    embedding_dim=4, epochs=3, evaluate_every=1, learning_rate=0.02, block_users=10, user_side=0.5
)
TIMEOUT = 10.0
"""For the worker that hangs; elsewhere a slow machine is not to be taken for one."""


def world() -> Split:
    return small_split()


def options(workers: int = 2, **more: Any) -> FitOptions:
    # A checkpoint a step: whatever happens, there is a last one.
    cluster = Workers(workers=workers, **more)
    return FitOptions(threads=1, checkpoint_minutes=0, checkpoint_epochs=1, cluster=cluster)


def main() -> None:
    out = Path(sys.argv[1])
    (out / "faults").mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    # Ray's processes, and the workers that they start, inherit these.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    )
    os.environ[faults.PLAN] = str(out / "faults")
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - so Ray spells it
    os.environ["RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"] = str(2 * TIMEOUT)
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    ray.init(address=nodes.address, log_to_driver=True, logging_level="error")
    seconds: dict[str, float] = {}
    try:
        for name, run in PARTS.items():
            began = time.time()
            run(out, nodes)
            seconds[name] = time.time() - began
    finally:
        (out / "seconds.json").write_text(json.dumps(seconds))
        ray.shutdown()
        nodes.shutdown()


def steps(out: Path, _: Cluster) -> None:
    """All losses on two workers."""
    write_store(world(), f"{out}/probe/store")
    trainer = TorchTrainer(
        probe,
        train_loop_config={"store": f"{out}/probe/store", "out": f"{out}/probe/steps", "least_rows": 4},
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(name="probe", storage_path=f"{out}/probe/ray"),
    )
    (out / "probe" / "found.json").write_text(json.dumps(trainer.fit().return_value))


def calm(out: Path, _: Cluster) -> None:
    """A run that nothing happens to, whose storage is an address."""
    storage = f"file://{out}/storage"
    driver.fit(world(), SETTINGS, seed=3, out=out / "calm", options=options(storage=storage))


def faulty(out: Path, _: Cluster) -> None:
    """A worker is killed in the second epoch, and the other one hangs in the third."""
    plan = {
        "killed": {"at": [1, 2, 1], "signal": signal.SIGKILL},
        "hangs": {"at": [0, 3, 2], "signal": signal.SIGSTOP},
    }
    (out / "faults" / "plan.json").write_text(json.dumps(plan))
    real, worker.run_worker = worker.run_worker, faults.faulty_worker
    try:
        driver.fit(world(), SETTINGS, seed=3, out=out / "faulty", options=options(timeout=TIMEOUT, retries=8))
    finally:
        worker.run_worker = real


def killed_driver(out: Path, nodes: Cluster) -> None:
    script = Path(__file__).parent / "driver_to_kill.py"
    ended = subprocess.run([sys.executable, str(script), nodes.address, str(out / "resumed")], check=False)
    (out / "driver.json").write_text(json.dumps({"code": ended.returncode}))
    driver.resume(RunFolder.open(out / "resumed"))


def all_users(out: Path, nodes: Cluster) -> None:
    """Lists and places for all users by two workers; what hands them out needs a processor as well."""
    nodes.add_node(num_cpus=1)
    wanted = {"k": 5, "history": "all", "include_seen": False, "deny": [101, 102]}
    run = RunFolder.open(out / "calm")
    inference.recommend_all(
        run, out / "all.parquet", Workers(workers=2), wanted, overwrite=False, progress=False
    )
    with ranked_together(run, Workers(workers=2), 64) as rank:
        found = evaluate(load_run(run.path), run.split(), ks=(3, 5), negatives=6, rank=rank)
    found.save(out / "evaluation")


PARTS = {
    "steps": steps,
    "calm": calm,
    "faulty": faulty,
    "killed driver": killed_driver,
    "all users": all_users,
}


if __name__ == "__main__":
    main()
