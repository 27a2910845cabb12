"""Experiments: tuning, and the paper's tables and figures, each resumable after any kill."""
