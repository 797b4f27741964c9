"""Work that all points of a family share.

A layer whose input is the same at every point (the first one, or the first that moves in a
layer-wise path) is linear in its weights: Σ wₖ (Wₖ x + bₖ) needs one product for each anchor, not
one for each point. So 51 points cost the first layer of a perceptron, most of its work, two products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from .family import combine

_LINEAR_IN_WEIGHTS: set[Any] = {functional.linear, torch.conv1d, torch.conv2d, torch.conv3d}
_FEW = 32
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def sharing_names(model: nn.Module) -> set[str]:
    """Parameters of plain linear and convolution layers, whose forward is known to be one of the functions above."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if type(module) in (nn.Linear, *_CONVOLUTIONS) and getattr(module, "padding_mode", "zeros") == "zeros"
        for name, _ in module.named_parameters(recurse=False)
    }


def convolves(model: nn.Module, names: Iterable[str]) -> bool:
    """Whether kernels are among the names. Convolutions with different weights are no faster together than alone."""
    wanted = set(names)
    kernels = [*_CONVOLUTIONS, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
    modules = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, tuple(kernels))]
    return any((f"{prefix}.weight" if prefix else "weight") in wanted for prefix, _ in modules)


class Mixed(TorchFunctionMode):
    """Inside, parameters in ``names`` are stand-ins, mixed when a function asks for them, or not at all.

    A stand-in is NaN all over and takes no memory: a function that escapes this mode cannot go
    unnoticed.

    Attributes:
        parameters: what to call the model with.
        made: the mixed tensors by name, to be handed to the next batch's mode.
    """

    def __init__(
        self,
        weights: Tensor,
        anchors: Mapping[str, Tensor],
        names: set[str],
        made: dict[str, Tensor],
        on_a_line: bool = False,
    ) -> None:
        super().__init__()
        self.weights = weights
        self.on_a_line = on_a_line
        self.made = dict(made)
        self._anchors: dict[int, Tensor] = {}
        self._names: dict[int, str] = {}
        self.parameters = {
            name: self._stand_in(name, x) if name in names else self._make(name, x) for name, x in anchors.items()
        }

    def _stand_in(self, name: str, anchors: Tensor) -> Tensor:
        nothing = torch.full((), torch.nan, dtype=anchors.dtype, device=anchors.device).expand(anchors.shape[1:])
        self._anchors[id(nothing)], self._names[id(nothing)] = anchors, name
        return nothing

    def finish(self, outputs: Any) -> None:
        """Called with what the model returned; nothing to remember here."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LINEAR_IN_WEIGHTS and not kwargs and len(args) > 1 and self._can_share(args):
            return self._share(func, args)
        args, kwargs = tree_map_only(Tensor, self._mix, (args, kwargs))
        device = self.weights.device.type
        if func in _LINEAR_IN_WEIGHTS and torch.is_autocast_enabled(device):
            # Inside vmap autocast forgets a convolution's bias.
            dtype = torch.get_autocast_dtype(device)
            args = tree_map_only(Tensor, lambda x: x.to(dtype), args)
        if func is functional.batch_norm and not kwargs.get("training", len(args) > 5 and args[5]):
            return _normalised(*args, **kwargs)
        if func is functional.linear and device == "cpu" and not kwargs and args[0].ndim == args[1].ndim == 2:
            return _linear(*args)
        return func(*args, **kwargs)

    def _can_share(self, args: tuple[Any, ...]) -> bool:
        """The same input for all points, and weight and bias (if there is one) both moving."""
        x, parts = args[0], [arg for arg in args[1:3] if isinstance(arg, Tensor)]
        return _level(x) < _level(self.weights) and all(id(part) in self._anchors for part in parts)

    def _share(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Tensor:
        outputs = []
        for k in range(self.weights.shape[0]):
            parts = [self._anchors[id(a)][k] if isinstance(a, Tensor) else a for a in args[1:3]]
            outputs.append(func(args[0], *parts, *args[3:]))
        return combine(self.weights, torch.stack(outputs), self.on_a_line)

    def _mix(self, x: Tensor) -> Tensor:
        return self._make(self._names[id(x)], self._anchors[id(x)]) if id(x) in self._anchors else x

    def _make(self, name: str, anchors: Tensor) -> Tensor:
        if name not in self.made:
            self.made[name] = combine(self.weights, anchors, self.on_a_line)
        return self.made[name]


def _level(x: Tensor) -> int:
    """How deep inside vmap a tensor is mapped; −1 for a plain one."""
    level: int = torch._C._functorch.maybe_get_level(x)
    return level


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer mapped over points on a CPU, whose batched products are slow where the result has few columns."""
    y = (weight @ x.mT).mT.contiguous() if len(weight) < _FEW else x @ weight.mT
    return y if bias is None else y + bias


def _normalised(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in evaluation mode as one multiply-add; torch's own takes several passes when mapped over points."""
    scale = (running_var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    shape = [-1] + [1] * (x.ndim - 2)
    return torch.addcmul(shift.reshape(shape), x.to(shift.dtype), scale.reshape(shape)).to(x.dtype)
