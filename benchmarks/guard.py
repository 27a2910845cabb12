"""Runs every benchmark quickly and fails where a ratio is worse than expected by a factor of two.

    python benchmarks/guard.py [bench_top_k …]       make bench runs all
    python benchmarks/guard.py --record bench_top_k  writes what was measured as expected

benchmarks/guards.json has the expected ratios of each benchmark and whether less or more of them is better.
Under `at_least` are limits that hold as they stand, without the factor.
Only ratios within one run are in it, so that another machine, or other work on it, is no failure by itself. A
ratio that could not be measured here, as where a peer cannot be installed, is named and is no failure either.
The verdict comes last, also after --minutes, Ctrl-C or SIGTERM; what was not run is named in it.
Files are left in hdccf's cache only.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from hdccf.data.download import cache_home

HERE = Path(__file__).parent
GUARDS = HERE / "guards.json"
FACTOR = 2.0
EVERY = [*sorted(path.stem for path in HERE.glob("bench_*.py")), "time_to_quality"]
LEFT_OUT = (
    "left out, as they train for minutes to hours and have no quick mode: attention_time, bpr_outside, "
    "cold_items, defaults, fold_in, given, gowalla, learning, lens_calibration, model_defaults, "
    "popular_candidates, sparse_updates; and curves, defaults_report, quality_report and scale, which "
    "measure nothing"
)


def measure(benchmark: str, until: float) -> dict[str, float]:
    """The object on its last line; the lines before it are shown as they come."""
    command = [sys.executable, str(HERE / f"{benchmark}.py"), "--quick", "--json"]
    cache, last = cache_home().resolve(), ""
    places = {"XDG_CACHE_HOME": "other", "NUMBA_CACHE_DIR": "numba", "MPLCONFIGDIR": "matplotlib"}
    own = {**os.environ, **{name: str(cache / place) for name, place in places.items()}}
    own |= {"HDCCF_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    if "PYTHONPATH" in own:
        own["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, own["PYTHONPATH"].split(os.pathsep)))
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=folder, env=own, start_new_session=True
        ) as process,
    ):
        limit = threading.Timer(max(0.0, until - time.monotonic()), os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                last = line
            process.wait()
        finally:
            limit.cancel()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if time.monotonic() >= until:
        raise TimeoutError
    if process.returncode:
        raise RuntimeError(f"it ended with code {process.returncode}")
    return flat(json.loads(last))


def flat(found: dict[str, Any], above: str = "") -> dict[str, float]:
    """Tables within tables as one, names joined by points."""
    numbers: dict[str, float] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            numbers |= flat(value, f"{above}{name}.")
        else:
            numbers[above + name] = value
    return numbers


def complaints_about(benchmark: str, expected: dict[str, Any], measured: dict[str, float]) -> list[str]:
    """What is worse by more than the factor, in words."""
    complaints = []
    for better, factor in (("less", FACTOR), ("more", 1 / FACTOR), ("at_least", 1.0)):
        for name, usual in expected.get(better, {}).items():
            if name not in measured:
                print(f"not measured here: {benchmark} {name}")
                continue
            limit, found = factor * usual, measured[name]
            if (found > limit) if better == "less" else (found < limit):
                wanted = "at least" if better == "at_least" else f"{better} is better, usually"
                complaints.append(f"{benchmark} {name} is {found:g}; {wanted} {usual:g}")
    return complaints


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=LEFT_OUT
    )
    parser.add_argument("benchmarks", nargs="*", choices=[*EVERY, []], help="all if none is named")
    parser.add_argument("--record", action="store_true", help="expect what is measured now")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop then; all take about seven")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    guards: dict[str, Any] = json.loads(GUARDS.read_text(encoding="utf-8"))
    todo, complaints, stopped = list(options.benchmarks or EVERY), [], ""
    until = time.monotonic() + 60 * options.minutes
    try:
        while todo:
            print(f"== {todo[0]}", flush=True)
            try:
                measured = measure(todo[0], until)
            except (RuntimeError, ValueError) as failure:
                complaints.append(f"{todo[0]} gave no figures ({failure})")
            else:
                expected = guards.get(todo[0], {})
                if options.record:
                    for names in (expected[better] for better in ("less", "more") if better in expected):
                        names.update({name: measured[name] for name in names if name in measured})
                    GUARDS.write_text(json.dumps(guards, indent=2) + "\n", encoding="utf-8")
                complaints += complaints_about(todo[0], expected, measured)
            todo.pop(0)
    except TimeoutError:
        stopped = f"stopped after {options.minutes:g} minutes"
    except KeyboardInterrupt:
        stopped = "interrupted"
    print(f"== verdict\n{LEFT_OUT}")
    if stopped:
        print(f"{stopped}; not measured: {', '.join(todo)}")
    for complaint in complaints:
        print(f"worse than allowed: {complaint}")
    print("FAILED" if complaints else "INCOMPLETE" if stopped else "PASSED", flush=True)
    sys.exit(1 if complaints or stopped else 0)


if __name__ == "__main__":
    main()
