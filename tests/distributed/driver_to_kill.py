"""A driver whose first worker kills it: python driver_to_kill.py ADDRESS RUN."""

import json
import os
import signal
import sys
from pathlib import Path

import faults
from scenario import SETTINGS, options, world

from hdccf.distributed import driver, worker


def main() -> None:
    address, run = sys.argv[1:]
    plan = {"driver": {"at": [0, 2, 1], "signal": signal.SIGKILL, "whom": os.getpid()}}
    (Path(os.environ[faults.PLAN]) / "plan.json").write_text(json.dumps(plan))
    worker.run_worker = faults.faulty_worker
    driver.fit(world(), SETTINGS, seed=3, out=run, options=options(address=address))


if __name__ == "__main__":
    main()
