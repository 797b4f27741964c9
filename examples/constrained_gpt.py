"""A small GPT whose matrices keep their norms, by one line beside AdamW (characters of this file as its text).

No weight decay: the norm of every row stays what it was in the beginning, times two, and only directions are learned.
"""

from pathlib import Path

import torch
from torch import nn

import holonom
from holonom.constraints import Sphere
from holonom.partitions import positions, weights


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int = 64, heads: int = 4, layers: int = 2, context: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x) + self.position, self.mask, is_causal=True))


def train(constrained: bool, steps: int = 60) -> None:
    torch.manual_seed(0)
    text = Path(__file__).read_text()
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(c) for c in text])
    model = GPT(len(characters))
    decay = 0.0 if constrained else 0.1
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)
    if constrained:  # the one line
        held = holonom.constrain(opt, model, {weights & ~positions: Sphere("initial", factor=2.0)}, update="tangent")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        start = torch.randint(len(tokens) - 65, (32, 1))
        batch = tokens[start + torch.arange(65)]
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        scheduler.step()
    print(f"{'on spheres' if constrained else 'AdamW':<10}: loss {loss.item():.3f}")
    if constrained:
        print(f"norms are off by {max(held.residuals().values()):.0e}")


if __name__ == "__main__":
    train(constrained=False)
    train(constrained=True)
