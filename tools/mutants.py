"""Mutation testing by cosmic-ray: random changes to the code that the tests must notice.

    python tools/mutants.py --each 20 --seed 0 --out results/mutants.md

Mutants are drawn from losses, samplers, splits, metrics, candidates and tuning, `--each` of every module, and
tested with the tests of that module in a copy of the last commit. Survivors are listed with their change.
Mutants of annotations, docstrings and messages are left out: no behaviour depends on them.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parent.parent
LOSSES = "tests/test_losses.py tests/test_losses_numerics.py"
TARGETS = {
    "losses/contrastive.py": f"{LOSSES} tests/models/test_factorization.py",
    "losses/block.py": f"{LOSSES} tests/models/test_hdccf_pool.py",
    "losses/negatives.py": "tests/test_negatives.py tests/models/test_hdccf.py tests/distributed",
    "data/samplers.py": "tests/data tests/models/test_hdccf_pool.py",
    "data/split.py": "tests/data/test_split.py",
    "evaluation/metrics.py": "tests/evaluation",
    "evaluation/candidates.py": "tests/evaluation",
    "experiments/tuning.py": "tests/experiments/test_tuning.py",
}
SECONDS = 300
# `|` and `*` stand in annotations and signatures as well, where a change is no change of behaviour.
LEFT_OUT = re.compile(r"core/(ReplaceBinaryOperator_BitOr_|RemoveDecorator|AddNot|ExceptionReplacer)")


def mutants_of(module: str, each: int, seed: int) -> list[WorkItem]:
    every = [
        item
        for item in _all_work_items([Path("src/hdccf") / module], {})
        if not LEFT_OUT.match(item.mutations[0].operator_name)
    ]
    return random.Random(f"{seed} {module}").sample(every, min(each, len(every)))


def changed_lines(result: WorkResult) -> str:
    lines = (result.diff or "").splitlines()
    return "\n".join(line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path has this in it")
    parser.add_argument("--out", type=Path, default=None, help="where survivors are listed; standard output")
    given = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rows, survivors, started = [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy / "src")
        for module, tests in TARGETS.items():
            if given.only not in module:
                continue
            drawn = mutants_of(module, given.each, given.seed)
            command = f"{sys.executable} -m pytest -q -x -n 0 -p no:cacheprovider {tests}"
            lived = 0
            for item in drawn:
                result = mutate_and_test(item.mutations, command, SECONDS)
                if result.test_outcome is TestOutcome.SURVIVED:
                    lived += 1
                    survivors.append(f"`{module}`\n\n```diff\n{changed_lines(result)}\n```\n")
            rows.append(f"| `{module}` | {len(drawn)} | {lived} |")
            print(f"{module}: {lived} of {len(drawn)} live, {time.monotonic() - started:.0f} s", flush=True)
    page = [
        "# Mutants",
        f"`make mutants`: {given.each} random mutants of each module, seed {given.seed}, at commit "
        f"{commit.stdout.strip()}.",
        "\n".join(["| module | mutants | survivors |", "|---|---:|---:|", *rows]),
        "## Survivors",
        *(survivors or ["None."]),
    ]
    text = "\n\n".join(page) + "\n"
    print(text) if given.out is None else given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
