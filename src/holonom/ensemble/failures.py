"""Which module failed: a pass over all replicas that torch cannot map is run again to find out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EnsembleError


def explain(
    template: nn.Module,
    one: Callable[..., Any],
    mapped: Callable[..., Any],
    dims: tuple[Any, ...],
    arguments: tuple[Any, ...],
    error: Exception,
) -> Exception:
    """The error to raise for one that ``mapped`` raised, which runs ``one`` for all replicas, mapped over ``dims``.

    If the first replica alone fails too, it is the model's or the loss's own error, returned as it is.
    """
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):  # what torch does not raise
        return error
    own, others, *batch = arguments
    copies = [{name: x.detach().clone() for name, x in stacks.items()} for stacks in (own, others)]  # buffers change
    with torch.random.fork_rng(devices=[]):
        if _fails(one, *map(_first, (*copies, *batch), dims)):
            return error
        entered: list[str] = []
        hooks = []
        for name, module in template.named_modules():
            label = f"{name or 'the model'} ({type(module).__name__})"
            hooks.append(module.register_forward_pre_hook(lambda *_, label=label: entered.append(label)))
            hooks.append(module.register_forward_hook(lambda *_: entered.pop() and None))
        try:
            if not _fails(mapped, *copies, *batch):
                return error
        finally:
            for hook in hooks:
                hook.remove()
    where = entered[-1] if entered else "the loss, or a gradient,"
    return EnsembleError(
        f"{where} cannot be run for all replicas at once, though it runs for one: {_first_line(error)}. What is mapped "
        f"over replicas may not branch on the values of tensors (if, .item(); use torch.where) nor write into tensors "
        f"that are no buffers (self.register_buffer). Or train such models one by one"
    )


def _fails(run: Callable[..., Any], *arguments: Any) -> bool:
    try:
        run(*arguments)
    except Exception:
        return True
    return False


def _first(x: Any, dim: Any) -> Any:
    """The first replica's part of an argument."""
    if dim is None:
        return x
    if isinstance(x, dict):
        return {name: _first(part, dim[name] if isinstance(dim, dict) else dim) for name, part in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(map(_first, x, dim if isinstance(dim, tuple) else [dim] * len(x)))
    return x[0] if isinstance(x, Tensor) else x


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
