"""Runs every benchmark quickly and fails where a ratio is worse than expected by a factor of two.

    python benchmarks/guard.py [bench_top_k …]       make bench runs all
    python benchmarks/guard.py --record bench_top_k  writes what was measured as expected

benchmarks/guards.json has the expected ratios of each benchmark and whether less or more of them is better.
Under `at_least` are limits that hold as they stand, without the factor.
Only ratios within one run are in it, so that another machine, or other work on it, is no failure by itself. A
ratio that could not be measured here, as where a peer cannot be installed, is named and is no failure either.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GUARDS = HERE / "guards.json"
FACTOR = 2.0


def measure(benchmark: str) -> dict[str, float]:
    """The object on its last line; the lines before it are shown as they come."""
    command = [sys.executable, str(HERE / f"{benchmark}.py"), "--quick", "--json"]
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line
    if process.returncode:
        raise SystemExit(f"{benchmark} ended with code {process.returncode}")
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
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = sorted(path.stem for path in HERE.glob("bench_*.py"))
    parser.add_argument("benchmarks", nargs="*", choices=[*every, []], help="all if none is named")
    parser.add_argument("--record", action="store_true", help="expect what is measured now")
    options = parser.parse_args()
    guards: dict[str, Any] = json.loads(GUARDS.read_text(encoding="utf-8"))
    complaints: list[str] = []
    for benchmark in options.benchmarks or every:
        print(f"== {benchmark}", flush=True)
        measured = measure(benchmark)
        expected = guards.get(benchmark, {})
        if options.record:
            for names in (expected[better] for better in ("less", "more") if better in expected):
                names.update({name: measured[name] for name in names if name in measured})
            GUARDS.write_text(json.dumps(guards, indent=2) + "\n", encoding="utf-8")
        complaints += complaints_about(benchmark, expected, measured)
    for complaint in complaints:
        print(f"worse than allowed: {complaint}", file=sys.stderr)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
