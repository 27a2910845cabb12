"""Compiled loops (numba) and the torch functions that call them. Nothing else imports numba."""
