"""From families of states to values: run the sweep, say what went wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .evaluation import Evaluation, as_evaluation
from .family import Family
from .states import Subject
from .sweep import Options, Sweep

Evaluate = Evaluation | Callable[[Any], Any]


def measured(
    subject: Subject, families: list[Family], evaluate: Evaluate, options: Options, places: Sequence[str]
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Metric names and each family's values; to be called by a public function, whose caller is warned."""
    sweep = Sweep(subject, families, as_evaluation(evaluate), **own_options(options))
    names, values = sweep.run()
    if sweep.points.obstacle:
        warnings.warn(f"points were evaluated one by one, which is slower: {sweep.points.obstacle}", stacklevel=3)
    if sweep.nonfinite == "raise":
        for own in values:
            _refuse_nonfinite(own, names, places)
    return names, values


def own_options(options: Options) -> dict[str, Any]:
    """What the sweep itself takes; replicas belong to the subject."""
    return {name: value for name, value in options.items() if name != "replicas"}


def _refuse_nonfinite(values: Tensor, names: Sequence[str], places: Sequence[str]) -> None:
    bad = ~values.isfinite()
    if not bool(bad.any()):
        return
    metric = names[int(bad.flatten(1).any(1).nonzero()[0])]
    points = bad.flatten(0, -2).any(0).nonzero().flatten().tolist()
    raise FloatingPointError(
        f"{metric} is NaN or infinite at {len(points)} of {len(places)} points, first at {places[points[0]]}: "
        f"lower the range, recompute batch-norm statistics, or pass nonfinite='keep' to see the rest"
    )
