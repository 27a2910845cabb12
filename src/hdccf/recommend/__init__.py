"""Answers of a trained model: recommendations, similar items, explanations, exports."""
