"""What models must have in common to be stacked, and layers that cannot be mapped over replicas."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import EnsembleError

_PLAIN = (bool, int, float, str, type(None))


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied ones under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def check_mappable(model: nn.Module) -> None:
    """Layers that torch cannot map over replicas."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            raise EnsembleError(
                f"{name or 'the model'} is an nn.{type(module).__name__}, which torch cannot run for many replicas at "
                f"once; train such models one by one"
            )
        if (
            isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm))
            and module.momentum is None
            and module.track_running_stats
        ):
            raise EnsembleError(
                f"{name} averages its statistics over all batches (momentum=None), which takes a number from the "
                f"device at every step; give it a momentum, such as 0.1"
            )


def check_alike(models: list[nn.Module], source: str) -> None:
    """Replicas must differ in numbers only: the first one's modules are run with the tensors of all."""
    first = _architecture(models[0])
    if not tensors(models[0]):
        raise EnsembleError(f"{source}: a model without parameters has nothing to stack")
    for number, model in enumerate(models[1:], 1):
        other = _architecture(model)
        different = [name for name in first | other if first.get(name) != other.get(name)]
        if different:
            shown = "; ".join(f"{name}: {_show(first, name)} and {_show(other, name)}" for name in different[:4])
            more = f"; and {len(different) - 4} more" if len(different) > 4 else ""
            raise EnsembleError(
                f"{source} must have the same architecture every time; replica {number} differs from replica 0 in "
                f"{shown}{more}"
            )


def _architecture(model: nn.Module) -> dict[str, Any]:
    """All that a model is but the contents of its tensors, by name."""
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        # A parametrized module has a class of its own, derived from the one it was built from.
        found[f"the type of {prefix or 'the model'}"] = (
            type(module).__bases__[0] if is_parametrized(module) else type(module)
        )
        for name, value in vars(module).items():
            parts = value if isinstance(value, tuple) else (value,)
            if all(isinstance(part, _PLAIN) for part in parts) and not name.startswith("_"):
                found[f"{prefix}.{name}".lstrip(".")] = value
    for name, x in tensors(model).items():
        found[name] = (tuple(x.shape), x.dtype, x.device, x.requires_grad)
    return found


def _show(architecture: dict[str, Any], name: str) -> str:
    if name not in architecture:
        return "nothing"
    value = architecture[name]
    if isinstance(value, type):
        return value.__name__
    return " ".join(map(str, value[:3])) + (" trained" if value[3] else " frozen") if _is_tensor(value) else repr(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 4 and isinstance(value[3], bool) and isinstance(value[0], tuple)
