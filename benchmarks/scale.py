"""Bytes and seconds of an epoch that nobody has run, from what was measured: the arithmetic of docs/scale.md.

    python benchmarks/scale.py                     the tables of docs/scale.md
    python benchmarks/scale.py --check             the formulas for a step that bench_distributed.py measures

Nothing is trained. Every constant is an option with the measured value as its default; what is an assumption
about hardware that was not at hand is named so.
"""

import argparse
from dataclasses import dataclass, replace

FLOAT, NUMBER = 4, 8


@dataclass(frozen=True)
class Data:
    """How much there is to learn from."""

    users: float = 1e7
    items: float = 1e6
    events: float = 1e10

    @property
    def a_user(self) -> float:
        return self.events / self.users


@dataclass(frozen=True)
class Step:
    """A block of HDCCF with history vectors: rows × columns, d numbers a vector."""

    rows: int = 2048
    columns: int = 65536
    dim: int = 128
    history: int = 200
    ahead: int = 5
    tables: int = 2
    """Items, and items as a past: `history_table="own"`."""

    def flops(self) -> float:
        """Scores and the gradients of both sides."""
        return 6.0 * self.rows * self.columns * self.dim

    def observed(self, data: Data) -> float:
        """The pairs of the block's users that fall on its columns."""
        share = min(1.0, self.columns / data.items)
        return self.rows * data.a_user * share

    def touched(self, data: Data) -> float:
        """Rows of the item tables that get a gradient."""
        past = min(data.items, self.rows * self.history)
        return min(data.items, self.columns) + (self.tables - 1) * past

    def bytes_of_batch(self, data: Data) -> float:
        """What a worker hands over so that all know the block: entries of pairs, histories, positives."""
        return 3 * NUMBER * self.observed(data) + self.rows * (FLOAT * self.history + 2 * FLOAT * self.ahead)

    def bytes_of_sums(self) -> float:
        """A column's largest, its sum, and the gradient of that."""
        return 3 * FLOAT * self.columns

    def bytes_of_gradients(self, data: Data) -> float:
        return self.touched(data) * (self.dim * FLOAT + NUMBER)


@dataclass(frozen=True)
class Hardware:
    """What computes, and what lies between."""

    workers: int
    cores: int
    flops_a_core: float
    """Of a whole step, drawing and optimizer included: measured on one core."""
    bytes_a_second: float
    """Of a worker's network: an assumption."""
    latency: float
    """Of one exchange: measured between two processes of one machine."""
    seconds_a_pair: float
    """Of drawing: of each pair of the own users of a block, and of each that falls on its columns."""
    optimizer_rows: float
    """Rows of 128 that a core's optimizer moves in a second, dense: every row of every table."""


def report(data: Data, step: Step, hardware: Hardware, *, sparse: bool) -> dict[str, float]:
    """Of one worker, a step and an epoch."""
    w = hardware.workers
    ring = 2 * (w - 1) / w
    wire = (
        ring * (step.bytes_of_sums() + step.bytes_of_gradients(data))
        + (w - 1) / w * w * step.bytes_of_batch(data) / w
    )
    compute = step.flops() / (w * hardware.cores * hardware.flops_a_core)
    moved = step.touched(data) if sparse else step.tables * data.items
    optimizer = moved / (hardware.cores * hardware.optimizer_rows)
    network = wire / hardware.bytes_a_second + 20 * hardware.latency
    steps = data.users / step.rows
    drawing = (step.rows * data.a_user / w + step.observed(data)) * hardware.seconds_a_pair
    seconds = compute + optimizer + network + drawing
    return {
        "MB on the wire a step": wire / 1e6,
        "ms drawing": 1e3 * drawing,
        "ms products": 1e3 * compute,
        "ms optimizer": 1e3 * optimizer,
        "ms network": 1e3 * network,
        "steps an epoch": steps,
        "TB an epoch and worker": steps * wire / 1e12,
        "hours an epoch": steps * seconds / 3600,
        "GB pairs": data.events * 20 / w / 1e9,
        "GB tables": step.tables * data.items * step.dim * FLOAT * 4 / 1e9,
        "GB scores": 3 * step.rows * step.columns * FLOAT / w / 1e9,
    }


def table(columns: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(columns.values())))
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    lines += [
        f"| {name} | " + " | ".join(f"{of[name]:,.3g}" for of in columns.values()) + " |" for name in names
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="ML-1M's step beside what was measured")
    parser.add_argument("--gflops", type=float, default=GFLOPS, help="of a step, a core; measured")
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds of an exchange; measured")
    parser.add_argument(
        "--rows", type=float, default=ROWS, help="of 128, that a core moves a second; measured"
    )
    parser.add_argument("--pair", type=float, default=PAIR, help="nanoseconds of drawing a pair; measured")
    parser.add_argument("--gigabits", type=float, default=25.0, help="of a machine's network; an assumption")
    parser.add_argument("--cores", type=int, default=16, help="of a machine; an assumption")
    options = parser.parse_args()
    if options.check:
        check()
        return
    one = Hardware(
        workers=16,
        cores=options.cores,
        flops_a_core=1e9 * options.gflops,
        bytes_a_second=options.gigabits / 8 * 1e9,
        latency=options.latency,
        seconds_a_pair=1e-9 * options.pair,
        optimizer_rows=options.rows,
    )
    data, step = Data(), Step()
    print(
        table({f"{w} workers": report(data, step, replace(one, workers=w), sparse=True) for w in (4, 16, 64)})
    )
    print()
    blocks = {f"{rows} × {columns}": (rows, columns) for rows, columns in BLOCKS}
    print(
        table(
            {
                name: report(data, Step(rows=rows, columns=columns), one, sparse=True)
                for name, (rows, columns) in blocks.items()
            }
        )
    )
    print()
    print(table({"dense optimizer": report(data, step, one, sparse=False)}))


def check() -> None:
    """ML-1M's training part, as bench_distributed.py steps on it."""
    data = Data(users=6040, items=3416, events=987_000)
    step = Step(rows=128, columns=3416)
    print(f"batches   {step.bytes_of_batch(data) / 2 / 1e3:8.1f} KB a worker")
    print(f"sums      {step.bytes_of_sums() / 1e3:8.1f} KB")
    print(f"gradients {step.bytes_of_gradients(data) / 1e3:8.1f} KB")
    print(f"products  {step.flops() / 1e9:8.3f} GFlop")


BLOCKS = ((512, 16384), (2048, 65536), (8192, 262144), (8192, 1_000_000))
GFLOPS, LATENCY, PAIR, ROWS = 28.0, 370e-6, 32.0, 13e6


if __name__ == "__main__":
    main()
