"""Batch-norm running statistics, measured anew for weights that never trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_BatchNorm = nn.modules.batchnorm._BatchNorm


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norms that keep running statistics, by the prefix of their names."""
    return {
        f"{name}." if name else "": module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats
    }


@contextmanager
def by_batch(norms: dict[str, _BatchNorm]) -> Iterator[None]:
    """Batch norms normalise by their batch and store nothing; everything else stays in its mode."""
    modules = list(norms.values())
    modes = [module.training for module in modules]
    for module in modules:
        module.training, module.track_running_stats = True, False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training, module.track_running_stats = mode, True


def observe(norms: dict[str, _BatchNorm], forward: Callable[[], Any]) -> dict[str, Tensor]:
    """Mean and (unbiased) variance of what every batch norm is given during one forward, under the buffers' names."""
    seen: dict[str, Tensor] = {}

    def hook(prefix: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            examples = [dim for dim in range(inputs[0].ndim) if dim != 1]
            seen[f"{prefix}running_mean"] = inputs[0].mean(examples)
            seen[f"{prefix}running_var"] = inputs[0].var(examples)

        return note

    hooks = [module.register_forward_pre_hook(hook(prefix)) for prefix, module in norms.items()]
    try:
        forward()
    finally:
        for handle in hooks:
            handle.remove()
    return seen
