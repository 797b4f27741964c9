"""A product with weights and what was folded into it, run in as few passes over memory as there are kernels for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .calls import Deviation, fits


@dataclass(frozen=True)
class Layer:
    """relu(Wx + bias + added), W being kernels or a matrix; all but the product only where wanted."""

    function: Any
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    geometry: tuple[Any, ...] = ()
    added: Tensor | None = None
    rectified: bool = False

    def then(self, kind: str | None, own: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer:
        """With the next call of a chain, which was given ``own`` as this layer's result."""
        if kind == "norm":
            return self._normalised(*args, **kwargs)
        if kind == "relu":
            return replace(self, rectified=True)
        if not fits("sum", args, kwargs, own):
            raise Deviation
        (other,) = [x for x in args if x is not own]
        return replace(self, added=other)

    def _normalised(
        self,
        own: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Layer:
        if training or running_mean is None or running_var is None:
            raise Deviation
        scale = (_wide(running_var) + eps).rsqrt_()
        scale = scale if weight is None else scale.mul_(weight)
        shift = -_wide(running_mean) if self.bias is None else self.bias - _wide(running_mean)
        shift = shift * scale if bias is None else torch.addcmul(_wide(bias), shift, scale)
        kernels = _wide(self.weight) * scale.reshape(-1, *[1] * (self.weight.ndim - 1))
        return replace(self, weight=kernels.to(self.weight.dtype), bias=shift.to(self.weight.dtype))

    def run(self) -> Tensor:
        if self.rectified and self._has_a_kernel():
            try:
                return self._in_one_kernel()
            except RuntimeError:  # none for this shape, or no cuDNN
                pass
        y: Tensor = self.function(self.x, self.weight, self.bias, *self.geometry)
        y = y if self.added is None else y.add_(self.added)
        return y.relu_() if self.rectified else y

    def _has_a_kernel(self) -> bool:
        """Whether cuDNN is worth asking. Its fused kernels add in float32, have no derivative, need not be
        deterministic, and are slow for a number of channels that is no multiple of 4."""
        cudnn = torch.backends.cudnn
        deterministic = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
        if not self.x.is_cuda or not cudnn.enabled or deterministic or torch.is_grad_enabled():
            return False
        if self.function is not torch.conv2d or self.x.ndim != 4 or self.x.dtype is torch.float64:
            return False
        return self.geometry[3] == 1 and not isinstance(self.geometry[1], str) and self.weight.shape[1] % 4 == 0

    def _in_one_kernel(self) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else self.x.dtype
        x, weight = self.x.to(dtype), self.weight.to(dtype)
        bias = None if self.bias is None else self.bias.to(dtype)
        stride, padding, dilation = (_twice(n) for n in self.geometry[:3])
        if self.added is None:
            return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
        return torch.cudnn_convolution_add_relu(x, weight, self.added, 1.0, bias, stride, padding, dilation, 1)


def layer_of(
    function: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Layer:
    """A call of a product."""
    geometry = () if function is functional.linear else (stride, padding, dilation, groups)
    return Layer(function, input, weight, bias, geometry)


def _twice(n: Any) -> list[int]:
    """One number for both directions, or one for each."""
    both = [n] if isinstance(n, int) else list(n)
    return both * 2 if len(both) == 1 else both


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype.itemsize >= 4 else x.float()
