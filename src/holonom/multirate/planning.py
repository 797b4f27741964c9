"""Which part of a network to make fast: predicted speed-ups of multirate training, (5.6) with real costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Cost:
    """What a step takes, in seconds, whose fast part is ``block`` and everything behind it.

    ``step`` is a whole step among others: on a GPU less than the sum of its parts, each of which waits for the device.
    """

    block: str
    parameters: int
    forward: float
    backward: float
    update: float
    step: float


@dataclass(frozen=True)
class Plan:
    """Measured costs of every split, and the speed-ups they predict. ``print(plan)`` shows the table.

    The first cost is that of plain training, where everything is differentiated at every step.
    """

    costs: tuple[Cost, ...]
    periods: tuple[int, ...]

    def cost(self, block: str) -> Cost:
        """What the split costs whose fast part begins at this block."""
        for cost in self.costs:
            if cost.block == block:
                return cost
        raise KeyError(f"no split begins at {block!r}; there are {', '.join(cost.block for cost in self.costs)}")

    def speedup(self, block: str, every: int) -> float:
        """Time of k plain steps over that of one slow and k − 1 fast ones: kT/(T + (k − 1)T_F).

        With equal layers and nothing but backward passes that is kL/(L + (k − 1)ℓ), (5.6).
        """
        whole, fast = self.costs[0].step, self.cost(block).step
        return every * whole / (whole + (every - 1) * fast)

    def rows(self) -> list[dict[str, Any]]:
        """One row a split: its block, its costs and the speed-up for every period."""
        return [
            {**vars(cost), "speedup": {every: self.speedup(cost.block, every) for every in self.periods}}
            for cost in self.costs
        ]

    def __str__(self) -> str:
        width = max(len("fast from"), *(len(cost.block) for cost in self.costs))
        parts = ("forward", "backward", "update", "step")
        head = f"{'fast from':<{width}}{'parameters':>13}" + "".join(f"{part:>10}" for part in parts)
        lines = [head + "".join(f"{f'k={every}':>8}" for every in self.periods)]
        for row in self.rows():
            times = "".join(f"{1e3 * row[part]:8.2f}ms" for part in parts)
            gains = "".join(f"{gain:7.2f}×" for gain in row["speedup"].values())
            lines.append(f"{row['block']:<{width}}{row['parameters']:>13,}{times}{gains}")
        return "\n".join(lines)


def plan(
    model: nn.Module,
    sample: Any,
    *,
    loss: Callable[[Any], Any] | None = None,
    blocks: Iterable[str] | None = None,
    periods: Iterable[int] = (2, 3, 5, 10),
    repeats: int = 5,
    clock: Callable[[], float] | None = None,
    verbose: bool = True,
) -> Plan:
    """Measure a model on a sample and predict what multirate training would save, for every split and period.

    Every split is run as it would be trained, with everything in front of the fast part frozen: forward
    pass, backward pass and update are timed, and so are whole steps in a row; medians are taken. The
    model is left as it was found (weights, buffers, gradients, random state), and is measured in the mode
    it is in: call ``model.train()`` first.

    Args:
        model: the network.
        sample: a batch: a tensor, or a tuple or dict of the forward pass's arguments.
        loss: of the model's output; the mean of its square by default, or the output's own ``loss``.
        blocks: names of modules at which the fast part may begin; found by themselves if not given.
        periods: the k of the table.
        repeats: how often every split is timed; five steps each.
        clock: seconds, or whatever else is to be saved, since some moment.
        verbose: print the table.
    """
    from .measure import measure

    costs = measure(model, sample, loss, blocks, repeats, clock)
    found = Plan(tuple(costs), tuple(periods))
    if verbose:
        print(found)
    return found
