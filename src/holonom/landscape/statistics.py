"""Batch-norm running statistics, measured for weights that were never trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_CLASSES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def batch_norms(model: nn.Module) -> dict[str, Any]:
    """The batch norms that have running statistics, by the prefix of their tensors' names."""
    return {
        f"{name}." if name else "": module
        for name, module in model.named_modules()
        if isinstance(module, _CLASSES) and module.track_running_stats
    }


@contextmanager
def by_batch(norms: dict[str, Any]) -> Iterator[None]:
    """Batch norms normalise by the batch and store nothing; other modules stay in evaluation mode."""
    modules = list(norms.values())
    modes = [module.training for module in modules]
    for module in modules:
        module.training, module.track_running_stats = True, False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training, module.track_running_stats = mode, True


def observe(norms: dict[str, Any], forward: Callable[[], Any]) -> dict[str, Tensor]:
    """Mean and (unbiased) variance of every batch norm's input in one forward, by the buffers' names."""
    found: dict[str, Tensor] = {}

    def hook(prefix: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            examples = [dim for dim in range(inputs[0].ndim) if dim != 1]
            found[f"{prefix}running_mean"] = inputs[0].mean(examples)
            found[f"{prefix}running_var"] = inputs[0].var(examples)

        return note

    hooks = [module.register_forward_pre_hook(hook(prefix)) for prefix, module in norms.items()]
    try:
        forward()
    finally:
        for handle in hooks:
            handle.remove()
    return found
