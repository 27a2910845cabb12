"""Workers that are killed, or stop, in the middle of an epoch: once each, where a plan says so."""

import json
import os
import time
from pathlib import Path
from typing import Any

from hdccf.distributed import worker
from hdccf.training.loop import Loop

run_worker = worker.run_worker

PLAN = "HDCCF_TEST_FAULTS"
"""The environment variable with the folder of plan.json: a list of rank, epoch, step, signal and whom."""


def faulty_worker(config: dict[str, Any]) -> dict[str, Any]:
    """As the real one, which it calls."""
    folder = Path(os.environ[PLAN])
    plan = json.loads((folder / "plan.json").read_text())
    step = Loop._step

    def with_faults(self: Loop, batch: Any, number: int) -> bool:
        for name, fault in plan.items():
            here = (self.process_group.rank, self.state.epoch, number) == tuple(fault["at"])
            if here and not (folder / name).exists():
                (folder / name).write_text(f"{time.time()}")
                os.kill(fault.get("whom") or os.getpid(), fault["signal"])
                if fault.get("whom"):
                    time.sleep(600)  # until Ray ends what the dead one has left
        return step(self, batch, number)

    Loop._step = with_faults  # type: ignore[method-assign]
    try:
        return run_worker(config)
    finally:
        Loop._step = step  # type: ignore[method-assign]
