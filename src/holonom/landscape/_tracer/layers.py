"""A linear layer or a convolution, and the batch norm, sum and ReLU behind it, in few passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..points import combine

_FEW_COLUMNS = 32


@dataclass
class Mix:
    """Σ cₖ anchorₖ, computed when read. Inside vmap ``coefficients`` has a row for each point."""

    coefficients: Tensor
    anchors: Tensor
    on_line: bool

    @cached_property
    def tensor(self) -> Tensor:
        return combine(self.coefficients, self.anchors, self.on_line)


@dataclass(frozen=True)
class Norm:
    """Batch norm with running statistics, which is linear in its input."""

    mean: Tensor
    variance: Tensor
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=self.eps)

    def fold(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weight and bias of the layer in front and this norm together:

        γ (Wx + c − μ) / √(σ² + ε) + β  =  (sW) x + s (c − μ) + β,    s = γ / √(σ² + ε).
        """
        scale = (_wide(self.variance) + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shift = -_wide(self.mean) if bias is None else bias - _wide(self.mean)
        shift = shift * scale if self.bias is None else torch.addcmul(_wide(self.bias), shift, scale)
        folded = _wide(weight) * scale.reshape(-1, *[1] * (weight.ndim - 1))
        return folded.to(weight.dtype), shift.to(weight.dtype)


@dataclass(frozen=True)
class Layer:
    """relu(norm(Wx + bias) + added); norm, sum and ReLU where the model has them.

    Args:
        function: linear or conv1d, conv2d, conv3d.
        geometry: its arguments after the bias.
    """

    function: Callable[..., Tensor]
    geometry: tuple[Any, ...]
    norm: Norm | None
    added: Any
    relu: bool

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        norm = self.norm
        if norm is not None and x.ndim == weight.ndim:  # channels are in the second dimension, as the norm's are
            weight, bias = norm.fold(weight, bias)
            norm = None
        if self.relu and norm is None and self.has_fused_kernel(x, weight):
            try:
                return self.fused(x, weight, bias)
            except RuntimeError:  # no kernel for this shape, or no cuDNN
                pass
        x, weight, bias = map(_autocast, (x, weight, bias))
        return self._finish(self.function(x, weight, bias, *self.geometry), norm)

    def mixed(self, x: Tensor, weight: Mix, bias: Mix | None) -> Tensor:
        """For an input that is the same at all points: Σ cₖ (Wₖ x + bₖ), a product for each anchor, not each point."""
        parts = zip(weight.anchors, weight.anchors if bias is None else bias.anchors, strict=True)
        outputs = [self.function(x, w, None if bias is None else b, *self.geometry) for w, b in parts]
        return self._finish(combine(weight.coefficients, torch.stack(outputs), weight.on_line), self.norm)

    def _finish(self, y: Tensor, norm: Norm | None) -> Tensor:
        y = y if norm is None else norm(y)
        if self.added is not None:
            y = y.add_(self.added) if _like(self.added, y) else y + self.added
        return y.relu_() if self.relu else y

    def has_fused_kernel(self, x: Tensor, weight: Tensor) -> bool:
        """Whether cuDNN's fused kernels fit. They add in float32, need not be deterministic, and are slow if 4 does not
        divide the number of channels."""
        cudnn = torch.backends.cudnn
        if self.function is not torch.conv2d or not x.is_cuda or not cudnn.enabled or x.dtype is torch.float64:
            return False
        if cudnn.deterministic or torch.are_deterministic_algorithms_enabled() or weight.shape[1] % 4:
            return False
        if len(self.geometry) < 4 or self.geometry[3] != 1 or isinstance(self.geometry[1], str) or x.ndim != 4:
            return False
        return self.added is None or _like(self.added, x, self._output_shape(x, weight))

    def _output_shape(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        sides = zip(x.shape[2:], weight.shape[2:], *map(_pair, self.geometry[:3]), strict=True)
        return len(x), len(weight), *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight, bias, added = map(_autocast, (x, weight, bias, self.added))
        stride, padding, dilation = map(_pair, self.geometry[:3])
        if added is None:
            return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
        return torch.cudnn_convolution_add_relu(x, weight, added, 1.0, bias, stride, padding, dilation, 1)


def linear_inside_vmap(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """On a CPU batched products are slow if the result has few columns, so that its transpose is computed."""
    y = (weight @ x.mT).mT.contiguous() if len(weight) < _FEW_COLUMNS else x @ weight.mT
    return y if bias is None else y + bias


def _autocast(x: Any) -> Any:
    """Cast as autocast does for products; inside vmap it leaves out convolutions."""
    if x is None or x.dtype is torch.float64 or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _like(x: Any, y: Tensor, shape: tuple[int, ...] | None = None) -> bool:
    return isinstance(x, Tensor) and x.dtype == y.dtype and tuple(x.shape) == tuple(shape or y.shape)


def _pair(n: Any) -> list[int]:
    both = [n] if isinstance(n, int) else list(n)
    return both * 2 if len(both) == 1 else both


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype.itemsize >= 4 else x.float()
