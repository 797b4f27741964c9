"""A small transformer language model (thesis 4.7.3.2, paper table 2)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


class TransformerLM(nn.Module):
    r"""Predicts the next word: embedding, sinusoidal positions, causal encoder layers, linear decoder.

    .. math:: x_0 = \sqrt{d}\,E[\text{token}] + \text{position}, \qquad \text{logits} = D x_L + b

    and in every layer, with dropout on each branch, x ← norm₁(x + attention(x)), then
    x ← norm₂(x + feedforward(x)). The papers give layers, heads and the width of the feed-forward net;
    embedding size and dropout are not given and default to the common choice for this model.

    Table 2 gives a radius to each kind of layer; r has no subscript and is taken to apply to
    the other kinds. :attr:`roles` holds the name patterns, which cover every parameter once:

        ======================  ==========  ======  =======================================
        pattern                 role        radius  what it is
        ======================  ==========  ======  =======================================
        ``*.feedforward.*``     linear      r_L     the two linear maps inside a layer
        ``*.norm?.*``           norm        r_N     layer norms
        ``*.attention.*``       attention   r_A     queries, keys and values; their output
        ``embedding.*``         embedding   r       the word vectors
        ``decoder.*``           decoder     r       the last linear map
        ======================  ==========  ======  =======================================

    >>> roles = TransformerLM.roles
    >>> groups = holonom.partition(model, {roles["norm"]: {"constraint": Circle(1.0)}, "rest": {}})

    Args:
        vocabulary: number of different words.
        embedding: width d of the word vectors, even and a multiple of ``heads``.
        heads: attention heads per layer.
        feedforward: hidden width of each layer's feed-forward net.
        layers: encoder layers.
        dropout: probability, in training mode.
    """

    roles: ClassVar[dict[str, str]] = {
        "linear": "*.feedforward.*",
        "norm": "*.norm?.*",
        "attention": "*.attention.*",
        "embedding": "embedding.*",
        "decoder": "decoder.*",
    }

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 200,
        heads: int = 2,
        feedforward: int = 200,
        layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if embedding % 2 or embedding % heads:
            raise ValueError(f"embedding must be even and a multiple of heads={heads}, got {embedding}")
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(embedding, heads, feedforward, dropout) for _ in range(layers))
        self.decoder = nn.Linear(embedding, vocabulary)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (T, B, vocabulary) of the word behind each of the tokens (T, B)."""
        x = self.embedding(tokens)
        width = x.shape[-1]
        x = self.dropout(math.sqrt(width) * x + positions(len(tokens), width, x)[:, None])
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.decoder(x)
        return logits


class EncoderLayer(nn.Module):
    """Causal self-attention and a feed-forward net, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention = CausalAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, feedforward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feedforward, width)
        )
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        out: Tensor = self.norm2(x + self.dropout(self.feedforward(x)))
        return out


class CausalAttention(nn.Module):
    """Each word attends to itself and the words before it: softmax(QKᵀ/√k) V in every head, k = width/heads.

    Written out, because torch's fused attention would run a stack of models one by one under ``torch.vmap``.
    """

    packed_blocks: ClassVar[dict[str, int]] = {"inputs.weight": 3}  # queries, keys and values

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.inputs.weight)
        nn.init.zeros_(self.inputs.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, width) → (T, B, width)."""
        length, batch, width = x.shape
        parts = self.inputs(x).reshape(length, batch, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 1, 3, 0, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        attention = self.dropout(functional.softmax(scores.masked_fill(later, -math.inf), -1))
        mixed = (attention @ value).permute(2, 0, 1, 3).reshape(length, batch, width)
        out: Tensor = self.output(mixed)
        return out


def positions(length: int, width: int, like: Tensor) -> Tensor:
    """(length, width) sines and cosines of t/10000^{2i/width}, in alternating columns."""
    # Half precision cannot represent positions beyond a few hundred exactly.
    dtype = torch.promote_types(like.dtype, torch.float32)
    time = torch.arange(length, device=like.device, dtype=dtype)
    index = torch.arange(0, width, 2, device=like.device, dtype=dtype)
    angle = time[:, None] * torch.exp(-math.log(10_000.0) / width * index)
    return torch.stack([angle.sin(), angle.cos()], 2).flatten(1).to(like.dtype)
