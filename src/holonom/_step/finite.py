"""Keeping NaN and infinity out of the weights.

On a CPU a bad gradient raises before anything is written. On a device that check would stall the host, so its result
stays there, as a GradScaler's does: the step writes what was there before and is counted as skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from .._torch import has_triton
from ..errors import NonFiniteGradientError
from .buckets import Bucket
from .run import KERNEL_DEVICES, Gradients, Work

MAX_SUMMED = 65_536  # entries up to which a sum is faster than the extremes


def skip_non_finite(work: Iterable[Work]) -> Tensor | None:
    """Raise for a bad gradient on a CPU; on devices, whether the step must be skipped, as a boolean on the first."""
    on_device: list[tuple[Bucket, Gradients]] = []
    for group, buckets, gradients, *_ in work:
        for bucket, found in zip(buckets, gradients or (), strict=False):
            if bucket.device.type in KERNEL_DEVICES or bucket.device.type != "cpu":
                on_device.append((bucket, found))
            elif not math.isfinite(sum(map(_indicator, found))):
                _refuse_non_finite(bucket, found, group["step"])
    if not on_device:
        return None
    if has_kernel([bucket for bucket, _ in on_device]):
        from .._backends.triton import any_non_finite as found_by_kernel

        return found_by_kernel(on_device)
    return any_non_finite([gradient for _, found in on_device for gradient in found])


def has_kernel(buckets: Sequence[Bucket]) -> bool:
    """Whether one kernel, in float32, can look at all gradients of these buckets. It looks them up by their memory.

    The parameters of a tensor subclass may have no address, and then their gradients have none.
    """
    places = {bucket.device for bucket in buckets}
    if len(places) > 1 or places.pop().type not in KERNEL_DEVICES or not has_triton():
        return False
    return all(isinstance(b, Bucket) and b.precision.itemsize <= 4 and all(b.memory[0]) for b in buckets)


def any_non_finite(tensors: list[Tensor]) -> Tensor:
    first, tensors = tensors[0], [x for x in tensors if x.numel()]  # an empty one has no largest entry
    if not tensors:
        return torch.zeros((), dtype=torch.bool, device=first.device)
    return ~(get_total_norm(tensors, math.inf) < math.inf)  # nor is NaN


def _indicator(gradient: Tensor) -> float:
    """A number that is finite only if every entry is. If it is not, every entry may still be: a sum can overflow."""
    if gradient.numel() < MAX_SUMMED:
        return gradient.sum().item()
    least, most = torch.aminmax(gradient)
    return least.item() + most.item()


def _refuse_non_finite(bucket: Bucket, gradients: Iterable[Tensor], step: int) -> None:
    for gradient, name in zip(gradients, bucket.names, strict=True):
        bad = int((~gradient.isfinite()).sum())
        if bad:
            raise NonFiniteGradientError(
                f"step {step}: the gradient of {name} has {bad} of {gradient.numel()} entries NaN or infinite. Nothing "
                f"was changed: weights and state are those of the last good step. Lower lr, clip gradients "
                f"(torch.nn.utils.clip_grad_norm_), or use a GradScaler with half precision."
            )
