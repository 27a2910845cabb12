"""Evaluation: sampled and full ranking, metrics, significance tests and comparisons."""

from hdccf.evaluation.evaluation import Evaluation, evaluate
from hdccf.evaluation.ranking import Ranker

__all__ = ["Evaluation", "Ranker", "evaluate"]
