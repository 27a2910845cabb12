"""Numerical checks of the paper's theory: gradients, propositions, theorem, bound, blocks, popularity dial.

Predictions come from the paper's formulas, written out here; measurements from the samplers, weights and
losses of training. `docs/theory.md` has the details.
"""

from collections.abc import Callable, Iterable

from hdccf.console import track
from hdccf.errors import ConfigError
from hdccf.verify.blocks import check_blocks
from hdccf.verify.dial import check_dial
from hdccf.verify.gradients import check_bound, check_gradients
from hdccf.verify.propositions import check_propositions
from hdccf.verify.report import Curve, Finding, Report
from hdccf.verify.theorem import check_loss, check_scores

__all__ = ["Curve", "Finding", "Report", "verify"]

_CHECKS: dict[str, Callable[[int], Iterable[Finding]]] = {
    "gradients": check_gradients,
    "propositions": check_propositions,
    "theorem": check_scores,
    "bound": check_bound,
    "blocks": check_blocks,
    "dial": check_dial,
}
PARTS = ("gradients", "propositions", "theorem", "convergence", "bound", "blocks", "dial")


def verify(seed: int = 0, parts: tuple[str, ...] = PARTS, *, progress: bool = False) -> Report:
    """Checks some parts of the theory; the report has no `failures` if it holds for this code."""
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"{part!r} is no part of the theory; choose from {', '.join(PARTS)}")
    report = Report(seed=seed)
    for part in sorted(set(parts), key=PARTS.index):
        if part == "convergence":
            findings, curves = check_loss(seed, progress=progress)
            report.findings.extend(findings)
            report.curves.extend(curves)
        else:
            report.findings.extend(track(_CHECKS[part](seed), part, enabled=progress))
    return report
