"""HDCCF: the model, its settings and its training steps."""
