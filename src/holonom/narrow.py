"""Linear layers with very few inputs or outputs, spelled out for the compiler.

A product with an inner or outer dimension of 1 … 4 is no work for a matrix library, and a batched one
is worse. Written element by element it fuses with what stands around it, which makes a compiled
ensemble of small perceptrons several times faster. Uncompiled the layer is the ordinary one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_NARROW = 4
_ROWS = 8  # batches beyond this are worth a product again


class NarrowLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() or x.ndim != 2 or x.shape[0] > _ROWS:
            return functional.linear(x, self.weight, self.bias)
        rows = [self._few_inputs(row) if self.in_features <= _NARROW else self._few_outputs(row) for row in x.unbind(0)]
        return torch.stack(rows)

    def _few_inputs(self, row: Tensor) -> Tensor:
        terms = [x * column for x, column in zip(row.unbind(0), self.weight.unbind(1), strict=True)]
        return sum(terms[1:], terms[0] if self.bias is None else self.bias + terms[0])

    def _few_outputs(self, row: Tensor) -> Tensor:
        total = torch.stack([(row * weight).sum() for weight in self.weight.unbind(0)])
        return total if self.bias is None else total + self.bias


def adapted(model: nn.Module) -> nn.Module:
    """The model with its narrow linear layers exchanged; parameters and names stay."""
    for module in model.modules():
        if type(module) is nn.Linear and min(module.in_features, module.out_features) <= _NARROW:
            module.__class__ = NarrowLinear
    return model
