"""A small transformer with embedding, norm and attention, whose operators are attributes as in people's own models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

VOCABULARY, WIDTH, HEAD, FEATURES, LENGTH = 16, 16, 8, 4, 4


class Attention(nn.Module):
    """Self-attention; the number of heads follows the width of what the projections give, so that it may be cut."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (linear(WIDTH, WIDTH) for _ in range(4))
        self.softmax: Any = torch.softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))
        scores = self.softmax(q @ k.transpose(-1, -2) / HEAD**0.5, -1)
        return self.wo((scores @ v).transpose(1, 2).flatten(2))

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


class Mlp(nn.Module):
    """Two linear layers around a GELU: a ReLU would mask a bad gradient where it is off."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.w1, self.w2 = linear(WIDTH, 2 * WIDTH), linear(2 * WIDTH, WIDTH)
        self.activation: Any = F.gelu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(self.activation(self.w1(x)))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(linear), Mlp(linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """
    Tokens and float features in, logits out. `keep` cuts the model for a pipeline: its blocks by number; the first
    part holds the embeddings, the last the head.
    """

    def __init__(self, depth: int = 3, linear: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.tokens: nn.Embedding | None = nn.Embedding(VOCABULARY, WIDTH)
        self.features: nn.Linear | None = linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleDict({str(i): Block(linear) for i in range(depth)})
        self.norm: nn.LayerNorm | None = nn.LayerNorm(WIDTH)
        self.head: nn.Linear | None = linear(WIDTH, VOCABULARY)

    def keep(self, blocks: Iterable[int], *, first: bool, last: bool) -> None:
        """Leave only the part of one pipeline stage."""
        wanted = {str(i) for i in blocks}
        for name in [name for name in self.blocks if name not in wanted]:
            del self.blocks[name]
        if not first:
            self.tokens = self.features = None
        if not last:
            self.norm = self.head = None

    def forward(self, tokens: torch.Tensor, features: torch.Tensor | None = None) -> torch.Tensor:
        if self.tokens is not None and self.features is not None:
            x = self.tokens(tokens) + self.features(features)
        else:
            x = tokens
        for block in self.blocks.values():
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))
