"""Evaluation that people can trust: sampled and full ranking through one rank function."""

from hdccf.evaluation.evaluating import evaluate
from hdccf.evaluation.ranking import Ranker
from hdccf.evaluation.report import Evaluation

__all__ = ["Evaluation", "Ranker", "evaluate"]
