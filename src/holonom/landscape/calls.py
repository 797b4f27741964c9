"""Calls of a model's forward: which are known, of what form, and tensors that stand in for their results."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

KINDS: dict[Any, str] = {
    **dict.fromkeys((functional.linear, torch.conv1d, torch.conv2d, torch.conv3d), "product"),
    functional.batch_norm: "norm",
    **dict.fromkeys((torch.add, Tensor.add, Tensor.__add__, Tensor.add_, Tensor.__iadd__), "sum"),
    **dict.fromkeys((functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), "relu"),
}
LOOKS: set[Any] = {
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.element_size, Tensor.is_floating_point, Tensor.__len__),
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "is_cuda")),
}


class Deviation(BaseException):
    """A point makes other calls than the first one did; no ``Exception``, lest a model's own handler take it."""


def fits(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> bool:
    """Whether a call is of the usual form."""
    if type(result) is not Tensor or not result.is_floating_point():
        return False
    if kind == "product":
        return len(args) > 1 and result.ndim == args[1].ndim  # with examples in front
    if kind == "norm":
        training = kwargs.get("training", len(args) > 5 and args[5])
        running = len(args) > 2 and args[1] is not None and args[2] is not None and not training
        return running and args[0].dtype == result.dtype
    if kind == "sum":
        alike = all(isinstance(x, Tensor) and x.shape == result.shape and x.dtype == result.dtype for x in args)
        return alike and len(args) == 2 and not kwargs
    return len(args) > 0


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def hollow(x: Tensor) -> Tensor:
    """A stand-in of this shape, filled with NaN to be seen, that takes no memory."""
    return torch.full((), torch.nan, dtype=x.dtype, device=x.device).expand(x.shape)
