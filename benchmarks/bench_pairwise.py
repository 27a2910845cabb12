"""All-pairs modulated scoring against its limit, and the peak memory of a step.

The limit is measured in the same run: the bare matrix product of its shape, 2·M·N·d² operations at the rate
of a 2048³ float32 product, plus M·N·d sigmoids; three products and one sigmoid with the backward pass. They
take turns, and the shortest time of each counts: what the machine does undisturbed.

    python benchmarks/bench_pairwise.py [--quick] [--json] [--memory] [--threads 2] [--sizes 512 4096]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from hdccf import losses
from hdccf.kernels import pairwise
from hdccf.kernels.pairwise import modulated_scores
from hdccf.similarity import Modulated, Vectors

SIZES = (512, 1024, 2048, 4096)
MEMORY_SIZES = (256, 512, 1024, 2048, 4096)
DIMENSIONS = (32, 64)


def fastest(runs: dict[str, Callable[[], object]], seconds: float, rounds: int = 3) -> dict[str, float]:
    """The shortest time of each, in rounds, so that all see the same machine.

    Within a round each is repeated: torch's threads go on spinning for some milliseconds after an operation
    and would take a core from whatever comes next.
    """
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            end = time.perf_counter() + seconds / rounds / len(runs)
            now = 0.0
            while now < end:
                start = time.perf_counter()
                run()
                now = time.perf_counter()
                best[name] = min(best[name], now - start)
    return best


def speed(sizes: Sequence[int], seconds: float) -> dict[str, float]:
    square, sample = torch.randn(2048, 2048), torch.randn(1 << 18)
    ratios = {}
    names = ("ns a pair", "limit", "ratio", "with backward", "limit", "ratio")
    print(f"{'d':>3} {'M = N':>6} " + " ".join(f"{name:>13}" for name in names))
    for d in DIMENSIONS:
        for n in sizes:
            shapes = ((n, d), (n, d), (n, d), (n, d), (n, d), (d, d), (d, d))
            inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
            runs: dict[str, Callable[[], object]] = {
                "product": partial(torch.mm, square, square),
                "sigmoid": partial(torch.sigmoid, sample),
                "forward": partial(modulated_scores, *(x.detach() for x in inputs)),
                "step": partial(_step, inputs, torch.randn(n, n)),
            }
            took = fastest(runs, seconds)
            product = took["product"] / (2 * 2048**3) * 2 * n * n * d * d
            sigmoids = took["sigmoid"] / sample.numel() * n * n * d
            row = []
            for name, limit in ("forward", product + sigmoids), ("step", 3 * product + sigmoids):
                ratios[f"{name}_d{d}_n{n}"] = took[name] / limit
                row += [took[name] / n**2 * 1e9, limit / n**2 * 1e9, took[name] / limit]
            print(f"{d:>3} {n:>6} " + " ".join(f"{value:>13.2f}" for value in row), flush=True)
    return ratios


def _step(inputs: list[torch.Tensor], upstream: torch.Tensor) -> None:
    torch.autograd.grad(modulated_scores(*inputs), inputs, upstream)


def memory_of_step(n: int, d: int, hidden: tuple[int, ...]) -> int:
    """Bytes that one step with its backward pass adds at its peak to what was there before (Linux)."""
    similarity = Modulated(d, hidden, generator=torch.Generator().manual_seed(0))
    left, right = (Vectors(*(torch.randn(n, d).requires_grad_() for _ in range(2))) for _ in range(2))

    def step(rows: int) -> None:
        scores = similarity.all_pairs(Vectors(*(x[:rows] for x in left)), Vectors(*(x[:rows] for x in right)))
        negatives = losses.log_negative_score(scores, temperature=0.1)
        losses.contrastive_loss(scores.diagonal(), negatives, None, temperature=0.1).sum().backward()  # type: ignore[no-untyped-call]

    pairwise.can_compile(torch.empty(1), pairwise.LEAST_NUMBERS)  # loads numba and its compiler
    step(64)  # libraries load and gradients take their place
    before = _kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    step(n)
    return (_kilobytes("VmHWM") - before) * 1024


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def memory(sizes: Sequence[int]) -> dict[str, float]:
    """Peak memory of a step in a process of its own for each size, and as a share of d × M × N numbers."""
    shares = {}
    print(f"{'g':>8} {'d':>3} {'M = N':>6} {'peak MB':>8} {'bytes a pair':>13} {'d·M·N alone, MB':>16}")
    for hidden in ((), (64,)):
        for d in DIMENSIONS:
            for n in sizes:
                call = [sys.executable, __file__, "--one-step", str(n), str(d), *map(str, hidden)]
                done = subprocess.run(call, capture_output=True, text=True, check=True)
                peak, naive = int(done.stdout), 4 * d * n * n
                name = "linear" if not hidden else "hidden"
                shares[f"{name}_d{d}_n{n}"] = peak / naive
                print(
                    f"{name:>8} {d:>3} {n:>6} {peak / 1e6:>8.1f} {peak / n**2:>13.1f} {naive / 1e6:>16.1f}",
                    flush=True,
                )
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two sizes, within a minute")
    parser.add_argument(
        "--json", action="store_true", help="print the ratios as one JSON object on the last line"
    )
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead of time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--sizes", type=int, nargs="+", help="M = N, instead of the usual ones")
    parser.add_argument("--one-step", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one_step:
        n, d, *hidden = options.one_step
        print(memory_of_step(n, d, tuple(hidden)))
        return
    if options.memory:
        results = memory(options.sizes or ((256, 1024) if options.quick else MEMORY_SIZES))
    else:
        sizes = options.sizes or (SIZES[:2] if options.quick else SIZES)
        results = speed(sizes, 3.0 if options.quick else 10.0)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in results.items()}))


if __name__ == "__main__":
    main()
