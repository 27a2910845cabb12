"""Generators derived from a seed and a purpose: no state to keep, and no two purposes share a stream."""

import hashlib

import torch


def generator_for(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on nothing but its arguments."""
    digest = hashlib.sha256(repr((seed, purpose)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
