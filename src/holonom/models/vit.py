"""A small vision transformer (Dosovitskiy et al., 2021) for MNIST (thesis 6.2.6.1)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class VisionTransformer(nn.Module):
    r"""Patches as words: linear patch embedding, a class token, learned positions, pre-norm encoder blocks.

    .. math:: x ← x + \text{attention}(\text{norm}_1(x)), \qquad x ← x + \text{mlp}(\text{norm}_2(x))

    and the class token, normalised, is classified by a linear head. The thesis gives 6 blocks, 8 heads and
    an MLP of 128; patch size and width are not in it.

    Args:
        classes: outputs.
        image: height and width of the images, a multiple of ``patch``.
        patch: height and width of a patch.
        channels: of the images.
        width: of the tokens, a multiple of ``heads``.
        blocks: encoder blocks.
        heads: attention heads in each.
        hidden: width of each block's MLP.
        dropout: probability behind attention and MLP, in training mode.
    """

    def __init__(
        self,
        classes: int = 10,
        image: int = 28,
        patch: int = 7,
        channels: int = 1,
        width: int = 64,
        blocks: int = 6,
        heads: int = 8,
        hidden: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image % patch or width % heads:
            raise ValueError(
                f"image must be a multiple of patch and width one of heads, got {image}, {patch}, {width}, {heads}"
            )
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, hidden, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, channels, image, image) → (N, classes)."""
        words = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(words), -1, -1), words], 1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


class Block(nn.Module):
    """Self-attention and an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class SelfAttention(nn.Module):
    """softmax(QKᵀ/√k) V in every head, k = width/heads, over all tokens.

    Written out, because torch's fused attention would run a stack of models one by one under ``torch.vmap``.
    """

    packed_blocks: ClassVar[dict[str, int]] = {"inputs.weight": 3}  # queries, keys and values

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → (N, T, width)."""
        batch, length, width = x.shape
        parts = self.inputs(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = functional.softmax(query @ key.transpose(-1, -2) / math.sqrt(width // self.heads), -1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        out: Tensor = self.output(mixed)
        return out
