"""Models and losses that do not define a posterior are refused, with the reason."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .._lines import users_line
from ..ensemble import Ensemble, Loss
from .inputs import Inputs, call, each, rows

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout
)  # fmt: skip
_EXAMPLES, _REPEATS = 16, 3  # that the loss is tried on, and how often


def check_model(model: nn.Module) -> None:
    """The likelihood must be a function of the weights and of one example."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, Ensemble):
        raise TypeError("sample() makes its chains itself: give one model, not an Ensemble, and chains=…")
    if hasattr(model, "_orig_mod") or isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        wrapper = "torch.compile" if hasattr(model, "_orig_mod") else type(model).__name__
        raise TypeError(f"sample() runs all chains as one program, inside {wrapper} it cannot: give the model it wraps")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("the model has no parameter with requires_grad=True, so there is nothing to sample")
    for name, module in model.named_modules():
        label = name or "the model"
        if isinstance(module, _BATCH_NORMS) and (module.training or not module.track_running_stats):
            raise ValueError(
                f"{label} is an nn.{type(module).__name__} that normalises by its batch: the likelihood of an example "
                f"then depends on the others in its batch, and no posterior over the weights is defined. Use "
                f"nn.GroupNorm or nn.LayerNorm, or call model.eval() to keep the running statistics as constants"
            )
        if module.training and isinstance(module, _DROPOUTS) and module.p > 0:
            raise ValueError(
                f"{label} drops units at random, so that the likelihood is not a function of the weights; call "
                f"model.eval(), or take the layer out"
            )


@torch.no_grad()
def check_loss(model: nn.Module, loss: Loss, x: Inputs, y: Tensor, num_data: float | None) -> None:
    """A loss that draws random numbers, or that is no mean over examples, would sample another law in silence."""
    few_x, few_y = rows(x, slice(_EXAMPLES)), y[:_EXAMPLES]
    value = loss(call(model, few_x), few_y)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"loss(output, target) must return one number, the batch's mean; got {shape}")
    with torch.enable_grad():
        if not loss(call(model, few_x), few_y).requires_grad:
            raise ValueError("the loss does not depend on the weights: leave out detach() and torch.no_grad()")
    scale = float(value.abs())
    if not all(abs(float(loss(call(model, few_x), few_y)) - float(value)) <= 1e-3 * scale for _ in range(_REPEATS)):
        raise ValueError(
            "the loss differs from one call to the next at the same weights: it draws random numbers (dropout called "
            "as a function, say) or is not finite. Call model.eval(), or make it a function of the weights"
        )
    twice = float(loss(call(model, each(lambda part: torch.cat([part, part]), few_x)), torch.cat([few_y, few_y])))
    if scale > 0 and abs(twice - 2 * float(value)) <= 1e-3 * scale:
        raise ValueError(
            "the loss doubles when its batch is doubled: it is a sum, and loss(output, target) must be the mean "
            "negative log-likelihood of the batch. Use reduction='mean'; num_data multiplies it"
        )
    half = len(few_y) // 2
    if half:

        def of(start: int, end: int) -> float:
            return float(loss(call(model, rows(few_x, slice(start, end))), few_y[start:end]))

        parts, both = (of(0, half) + of(half, 2 * half)) / 2, of(0, 2 * half)
        if abs(parts - both) > max(1e-3, 8 * torch.finfo(value.dtype).eps) * scale:
            warnings.warn(
                f"the loss of {2 * half} examples is {both:.4g}, and the mean of the losses of their halves "
                f"{parts:.4g}: it is not a mean over examples, as a log-likelihood is. Outputs have shape "
                f"{_shape(call(model, few_x))} and targets {tuple(few_y.shape)}: do they broadcast?",
                stacklevel=users_line(),
            )
    if num_data is None and (numbers := _averaged(loss, call(model, few_x), few_y)) > 1:
        warnings.warn(
            f"the loss averages over {numbers} numbers of every example, so that their likelihood counts as one "
            f"observation's. Sum over them, or give num_data={numbers * len(y)} (or num_data={len(y)} if it is meant)",
            stacklevel=users_line(),
        )


def _shape(output: Any) -> Any:
    return tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__


def _averaged(loss: Loss, output: Any, target: Tensor) -> int:
    """Over how many numbers of an example a loss takes the mean: it does not change when those are repeated."""
    if not isinstance(output, Tensor) or output.ndim - target.ndim not in (0, 1):
        return 1
    classes = output.ndim - target.ndim  # 1 where targets are indices of classes, which come second or last
    numbers = 1
    for dim in range(1, target.ndim):
        places = {d for d in (dim, dim + classes) if output.shape[d] == target.shape[dim] > 1}
        if any(_averages_over(loss, output, target, place, dim) for place in places):
            numbers *= target.shape[dim]
    return numbers


def _averages_over(loss: Loss, output: Tensor, target: Tensor, place: int, dim: int) -> bool:
    """Whether the loss stays as it is where one dimension of output and target is repeated."""
    value = float(loss(output, target))
    try:
        twice = float(loss(torch.cat([output] * 2, place), torch.cat([target] * 2, dim)))
    except Exception:  # the loss is made for this size, as one with weights for each number is
        return False
    return abs(twice - value) <= 1e-5 * abs(value)
