"""A character-level language model: its text, its network, one run."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...._random import mix
from ....data import wikitext2_characters
from ...run import Array, Run
from ..transfer.finetuning import half_precision
from .comparison import Make, marks, schedule

CLIP = 1.0  # of the gradient's norm


@dataclass(frozen=True)
class Size:
    """Of a network and its training."""

    width: int
    layers: int
    heads: int
    context: int
    batch: int
    steps: int
    warm_up: int

    @classmethod
    def of(cls, settings: SimpleNamespace) -> Size:
        return cls(*(getattr(settings, name) for name in cls.__dataclass_fields__))


class GPT(nn.Module):
    """A decoder with norms in front of its blocks, learned positions, GELU, no biases and no dropout."""

    def __init__(self, vocabulary: int, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # smaller where blocks add to the stream
                nn.init.normal_(p, 0.0, 0.02 / (2 * size.layers) ** (0.5 * name.endswith(("output.weight",))))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, context) → logits (batch, context, vocabulary)."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Attention(nn.Module):
    """Causal; queries, keys and values are packed."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.output(mixed.transpose(-2, -3).flatten(-2))
        return out


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * width, bias=False)
        self.output = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(nn.functional.gelu(self.input(x)))
        return out


class Characters:
    """WikiText-2 as characters on the run's device; ``most`` takes the beginnings of its texts only."""

    def __init__(self, run: Run, most: int | None) -> None:
        self.run = run
        corpus = wikitext2_characters(run.root)
        self.text, self.valid, self.test = (part[:most].to(run.device) for part in corpus[:3])
        self.vocabulary = len(corpus.vocabulary)

    def train(self, title: str, make: Make, size: Size, replica: int, tests: bool) -> Array:
        """Nats a character: on validation text during training, and last on the test text or NaN."""
        seed = mix(self.run.seed, replica) >> 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = GPT(self.vocabulary, size)
        model = model.to(self.run.device)
        optimizer = make(model)
        scheduler = LambdaLR(optimizer, lambda step: schedule(step, size.steps, size.warm_up))
        generator = torch.Generator().manual_seed(seed)
        losses = []
        with self.run.progress(title, size.steps) as progress:
            for step in range(1, size.steps + 1):
                self._step(model, optimizer, size, generator)
                scheduler.step()
                if step in marks(size.steps):
                    whole = step == size.steps
                    losses.append(self._loss(model, self.valid, size, None if whole else 4 * size.batch))
                progress(step, size.steps, None)
        return np.array([*losses, self._loss(model, self.test, size, None) if tests else np.nan])

    def _step(self, model: nn.Module, optimizer: Optimizer, size: Size, generator: torch.Generator) -> None:
        start = torch.randint(len(self.text) - size.context, (size.batch, 1), generator=generator)
        window = self.text[(start + torch.arange(size.context + 1)).to(self.run.device)]
        optimizer.zero_grad()
        with half_precision(self.run.device, True):
            loss = cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    @torch.no_grad()
    def _loss(self, model: nn.Module, text: Tensor, size: Size, most: int | None) -> float:
        """Nats a character, over windows that follow each other; ``most`` takes so many, spread over the text."""
        count = (len(text) - 1) // size.context
        every = max(1, count // most) if most else 1
        starts = size.context * torch.arange(0, count, every, device=text.device)
        windows = starts[:, None] + torch.arange(size.context + 1, device=text.device)
        total = torch.zeros((), dtype=torch.float64, device=text.device)
        for part in torch.split(windows, 4 * size.batch):
            with half_precision(self.run.device, True):
                logits = model(text[part[:, :-1]])
            total += cross_entropy(logits.float().flatten(0, 1), text[part[:, 1:]].flatten(), reduction="sum")
        return float(total) / (len(windows) * size.context)
