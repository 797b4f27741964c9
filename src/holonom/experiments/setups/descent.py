"""The optimizer of thesis chapter 6: SGD with momentum and weight decay, its step divided by ten twice."""

from __future__ import annotations

from collections.abc import Callable

from torch.optim import Optimizer

STEP, MOMENTUM, WEIGHT_DECAY, BATCH = 0.1, 0.9, 5e-4, 128


def dropped_twice(optimizer: Optimizer, epochs: int) -> Callable[[int], None]:
    """After a third and two thirds of the epochs the step is a tenth of what it was (6.1.3.1)."""
    first = [group["lr"] for group in optimizer.param_groups]

    def after(epoch: int) -> None:
        drops = sum(3 * epoch >= k * epochs for k in (1, 2))
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * 0.1**drops

    return after
