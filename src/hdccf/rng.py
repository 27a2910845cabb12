"""Generators derived from a seed and a purpose: no state to keep, and no two purposes share a stream; and
what is drawn from them in more than one place."""

import hashlib

import torch
from jaxtyping import Float
from torch import Tensor


def generator_for(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on nothing but its arguments."""
    digest = hashlib.sha256(repr((seed, purpose)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def dropout_mask(
    like: Float[Tensor, "*n d"], keep_probability: float, generator: torch.Generator
) -> Float[Tensor, "*n d"]:
    """1 / keep where kept, so that the mean stays, and 0 elsewhere; the probability is rounded to 2⁻¹⁶."""
    # Four numbers of 16 bits from each that is drawn: drawing is what takes the time.
    drawn = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
    numbers = drawn.random_(-(2**63), None, generator=generator).view(torch.int16)[: like.numel()]
    below = max(round(keep_probability * 2**16), 1)
    return (numbers.view(like.shape) <= below - 1 - 2**15).to(like.dtype).div_(keep_probability)
