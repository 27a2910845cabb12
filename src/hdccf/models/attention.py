"""A user's vector as attention over their recent items in order: the history vector that learns how to look.

The recency-weighted sum decides by age alone how loud an item speaks. Here each item of a window asks those
before it, by content and by age, a few times over (Vaswani et al., 2017, with a learnt weight for each age;
Kang and McAuley, 2018, have it for recommendation).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from hdccf.rng import dropout_mask
from hdccf.similarity import unit

_GROUPS = 4
"""Of windows of similar length, which are looked at together."""


class HistoryAttention(nn.Module):
    """x ← x + attention(norm x); x ← x + perceptron(norm x); `layers` times, and a unit vector at the end.

    Both steps start as nothing, so that a fresh encoder gives the latest item's own direction, and training
    adds what else the history says.
    """

    def __init__(
        self, dim: int, length: int, *, layers: int, heads: int, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.keep = 1.0 - dropout
        self.ages = nn.Parameter(0.2 * torch.randn(length, dim, generator=generator))
        self.layers = nn.ModuleList(Layer(dim, length, heads, generator) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        items: Float[Tensor, "n length d"],
        present: Bool[Tensor, "n length"],
        generator: torch.Generator | None = None,
        *,
        first: int = 0,
        n_windows: int | None = None,
    ) -> Float[Tensor, "n length d"]:
        """The user after each item of each window; a generator drops parts out, as in training.

        Where these are some of a block's windows, `first` and `n_windows` say which and of how many.
        """
        length, n = items.shape[1], len(items) if n_windows is None else n_windows
        masks = self._masks(items, generator, n, slice(first, first + len(items)))
        lengths = present.sum(1)
        order = lengths.argsort(descending=True)
        looked = []
        for group in order.chunk(_GROUPS):
            # Short histories need not wait for long ones: what is before the longest of a group is empty.
            start = length - max(int(lengths[group[0]]), 1)
            dropped = [None if mask is None else mask[group, start:] for mask in masks]
            part = self._look(items[group, start:], present[group, start:], dropped)
            looked.append(functional.pad(part, (0, 0, start, 0)))
        return torch.cat(looked)[order.argsort()]

    def _look(
        self,
        items: Float[Tensor, "n m d"],
        present: Bool[Tensor, "n m"],
        masks: list[Float[Tensor, "n m d"] | None],
    ) -> Float[Tensor, "n m d"]:
        """Of windows that are cut to their last m places; a mask for each thing that may be dropped."""
        places, dim = items.shape[1:]
        # Unit vectors have entries of about 1/√d; norms and age vectors are made for entries of about 1.
        x = _dropped(unit(items) * math.sqrt(dim) + self.ages[-places:], masks[0])
        past = torch.ones(places, places, dtype=torch.bool, device=items.device).tril()
        # What is not there asks itself, so that no row of a softmax is empty; nobody looks at the answer.
        itself = torch.eye(places, dtype=torch.bool, device=items.device)
        visible = (past & present.unsqueeze(1)) | itself
        for layer, answer, thought in zip(self.layers, masks[1::2], masks[2::2], strict=True):
            assert isinstance(layer, Layer)  # noqa: S101 - nn.ModuleList has no types
            x = x + _dropped(layer.attend(x, visible), answer)
            x = x + _dropped(layer.think(x), thought)
        return unit(self.norm(x))

    def _masks(
        self,
        items: Float[Tensor, "n length d"],
        generator: torch.Generator | None,
        n_windows: int,
        own: slice,
    ) -> list[Float[Tensor, "n length d"] | None]:
        wanted = 1 + 2 * len(self.layers)
        if generator is None or self.keep == 1.0:
            return [None] * wanted
        # Drawn for all windows of the block, so that it does not matter who looks at which of them.
        like = items.new_empty(1).expand(n_windows, *items.shape[1:])
        return [dropout_mask(like, self.keep, generator)[own] for _ in range(wanted)]


def _dropped(x: Float[Tensor, "n m d"], mask: Float[Tensor, "n m d"] | None) -> Float[Tensor, "n m d"]:
    return x if mask is None else x * mask


class Layer(nn.Module):
    """What one round asks and what it makes of the answers."""

    apart: Tensor

    def __init__(self, dim: int, length: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()

        def drawn(n: int, m: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(n, m, generator=generator) / math.sqrt(m))

        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query_key_value = drawn(3 * dim, dim)
        self.answer = nn.Parameter(torch.zeros(dim, dim))
        self.age_weights = nn.Parameter(torch.zeros(heads, length))
        self.inner, self.inner_bias = drawn(dim, dim), nn.Parameter(torch.zeros(dim))
        self.outer = nn.Parameter(torch.zeros(dim, dim))
        places = torch.arange(length)
        apart = (places.unsqueeze(1) - places).clamp_min(0)
        self.register_buffer("apart", apart, persistent=False)

    def attend(
        self, x: Float[Tensor, "n length d"], visible: Bool[Tensor, "n length length"]
    ) -> Float[Tensor, "n length d"]:
        n, length, dim = x.shape
        asked = functional.linear(self.first_norm(x), self.query_key_value)
        query, key, value = asked.view(n, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        weights = self.age_weights[:, self.apart[:length, :length]].expand(n, -1, -1, -1)
        answers = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=weights.masked_fill(~visible.unsqueeze(1), -torch.inf)
        )
        return functional.linear(answers.transpose(1, 2).reshape(n, length, dim), self.answer)

    def think(self, x: Float[Tensor, "n length d"]) -> Float[Tensor, "n length d"]:
        inner = functional.gelu(functional.linear(self.second_norm(x), self.inner, self.inner_bias))
        return functional.linear(inner, self.outer)
