"""The scenario is played once for all tests, and by one of pytest's processes only."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `scenario.py` did, with its output in scenario.log."""
    base = tmp_path_factory.getbasetemp()
    # Processes of pytest-xdist have folders beside each other.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    out = shared / "scenario"
    with FileLock(shared / "scenario.lock"):
        if not (out / "code").exists():
            out.mkdir()
            (out / "code").write_text("it did not end")  # so that the next one does not try again
            _play(out)
    assert (out / "code").read_text() == "0", (out / "scenario.log").read_text()[-4000:]
    return out


def _play(out: Path) -> None:
    paths = os.pathsep.join([str(HERE), str(HERE.parent), *sys.path])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "HDCCF_CACHE": str(out / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    with (out / "scenario.log").open("wb") as log:
        ended = subprocess.run(
            [sys.executable, str(HERE / "scenario.py"), str(out)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=1500,  # under load it has taken eight minutes
        )
    (out / "code").write_text(str(ended.returncode))
