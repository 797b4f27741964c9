"""The Python script that repeats a run, the table of its numbers, and the link to its settings."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from .. import __version__
from . import methods, recipe
from .run import NUMBERS, Change, Run
from .settings import ACTIVATIONS, Settings, drawing

IMPORTS = """\
from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import holonom
from holonom import presets
from holonom.batches import Shuffled
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.metrics import Thermometer, boundary_curvature, boundary_curvatures, mean_curvature
from holonom.partitions import hidden, output, weights
"""

TRAIN = '''\
def train(make: Any, settings: dict[str, Any], radii: dict[str, float], places: Any, changes: Any) -> Arm:
    """An arm after {steps:,} steps; ``changes`` were made while it trained."""
    model, seed = networks({sizes}, nn.{activation}, "{start}", replicas={replicas}, seed=SEED)
    bounds = {{name: torch.tensor(radius) for name, radius in radii.items()}}
    arm = Arm(model, make(model, seed, **settings, **bounds), places, bounds)
    x, y, *_ = data({painted})
    size = {batch}
    batches = Shuffled(x, y, min(size, len(x)), torch.tensor(SEED))
    for step in range({steps} + 1):
        for name, value in changes.get(step, ()):
            if name in ("batch", "painted"):
                x, y, *_ = data(value) if name == "painted" else (x, y)
                size = value if name == "batch" else size
                batches = Shuffled(x, y, min(size, len(x)), torch.tensor(SEED))
            else:
                arm.change(name, value)
        if step < {steps}:
            arm.advance(batches)
    return arm


def report(title: str, arm: Arm) -> None:
    """Print the numbers of the page."""
    x, y, x_test, y_test = data({painted_now})
    (train_loss, train_accuracy), (test_loss, test_accuracy) = (
        evaluate(arm.model, x, y), evaluate(arm.model, x_test, y_test)
    )
    print(title, f"after {{arm.step:,}} steps", arm.stopped)
    print(f"  train loss      {{float(train_loss.mean()):.8g}}")
    print(f"  test loss       {{float(test_loss.mean()):.8g}}")
    print(f"  train accuracy  {{float(train_accuracy.mean()):.8g}}")
    print(f"  test accuracy   {{float(test_accuracy.mean()):.8g}}")
    print(f"  residual        {{arm.residual():.8g}}")
    print(f"  curvature       {{curvature(arm.model, {bound!r}):.8g}}")
    for layer, (target, kinetic, configurational) in enumerate(arm.temperatures(), 1):
        print(f"  layer {{layer}}: temperature {{target:.8g}}, kinetic {{kinetic:.8g}}, "
              f"configurational {{configurational:.8g}}")
'''

DRAWN = '''\
def data(count: Any = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test points."""
    generator = torch.Generator().manual_seed(SEED)
    options: dict[str, float] = {options}
    return *{make}({points}, generator, **options), *{make}({test}, generator, **options)
'''

PAINTED = '''\
POINTS = {points}


def data(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first points that were painted."""
    return painted(POINTS[:count])
'''


def script(run: Run) -> str:
    """A program that trains as ``run`` did, step by step, and prints the numbers that the page shows.

    The run has data.
    """
    settings, first = run.settings, run.first
    is_painted = settings.data == "painted"
    titles = [methods.METHODS[arm.method].title for arm in settings.arms]
    makers = list(dict.fromkeys(methods.maker(arm.method, arm.values) for arm in settings.arms))
    parts: list[Any] = [recipe.network, recipe.networks, recipe.loss, recipe.evaluate, recipe.curvature, recipe.Arm]
    draw = recipe.painted if is_painted else drawing(settings)[0]
    train = TRAIN.format(
        steps=run.step, sizes=first.sizes, activation=ACTIVATIONS[first.activation].__name__, start=first.start,
        replicas=first.replicas, batch=first.batch, bound=settings.bound,
        painted=len(first.painted) if is_painted else "", painted_now=len(settings.painted) if is_painted else "",
    )  # fmt: skip
    head = (
        f'"""Repeats a run of holonom\'s playground: {" and ".join(titles)}, {run.step:,} steps, seed {first.seed}.\n\n'
        f"Written by holonom {__version__}. On the same machine and torch every digit is that of the page.\n"
        f"The last settings, to be put behind the address of the page:\n\n    {fragment(settings)}\n"
        f'"""\n'
    )
    sources = [_source(part) for part in (draw, *makers, *parts)]
    sections = [f"{head}\n{IMPORTS}\nSEED = {first.seed}", *sources, _data(run), train.rstrip(), _main(run, titles)]
    return "\n\n\n".join(sections) + "\n"


def _source(part: Callable[..., Any]) -> str:
    return inspect.getsource(part).rstrip()


def _data(run: Run) -> str:
    settings = run.settings
    if settings.data == "painted":
        rows = ", ".join(f"[{x!r}, {y!r}, {label:g}]" for x, y, label in settings.painted)
        return PAINTED.format(points=f"[{rows}]").rstrip()
    make, options = drawing(settings)
    return DRAWN.format(options=options, make=make.__name__, points=settings.points, test=recipe.TEST).rstrip()


def _main(run: Run, titles: list[str]) -> str:
    lines = ['if __name__ == "__main__":', "    torch.set_num_threads(1)"]
    for number, (arm, title) in enumerate(zip(run.first.arms, titles, strict=True)):
        make = methods.maker(arm.method, arm.values)
        radii = {name: arm.values[name] for name in methods.tensors(arm.values)}
        given = methods.arguments(arm.method, arm.values, radii)
        used = {name: given.pop(name) for name in radii if name in given}
        own = [change for change in run.changes if change.arm in (None, number)]
        places = methods.places(arm.method)
        needed = {change.name: places[change.name] for change in own if change.name in places}
        lines.append(
            f"    report({title!r}, train(\n        {make.__name__},\n        {given!r},\n        {used!r},\n"
            f"        {needed!r},\n        {_by_step(own)!r},\n    ))"
        )
    return "\n".join(lines)


def _by_step(changes: list[Change]) -> dict[int, list[tuple[str, Any]]]:
    found: dict[int, list[tuple[str, Any]]] = {}
    for change in changes:
        found.setdefault(change.step, []).append((change.name, change.value))
    return found


def fragment(settings: Settings) -> str:
    """The settings as the link of the page holds them; see share.js."""
    given = settings.to_json()
    arms, painted = given.pop("arms"), given.pop("painted")
    for letter, arm in zip("AB", arms, strict=False):
        given |= {letter: arm.pop("method"), **{f"{letter}.{name}": value for name, value in arm.items()}}
    if painted:
        given["painted"] = "*".join("_".join(map(_written, point)) for point in painted)
    return "#" + urlencode({name: _written(value) for name, value in given.items()}, safe="*")


def _written(value: Any) -> str:
    return "derived" if value is None else str(value).removesuffix(".0")


def _heading(run: Run) -> list[str]:
    """Comments above the table: the settings at the beginning, and every change since."""
    first, last = run.first, run.settings
    lines = [f"holonom {__version__} playground: {fragment(replace(first, painted=last.painted))}"]
    if first.painted != last.painted:
        lines.append(f"from step 0: painted={len(first.painted)} points")
    for change in run.changes:
        name = change.name if change.arm is None else f"{'AB'[change.arm]}.{change.name}"
        unit = " points" if change.name == "painted" else ""
        lines.append(f"from step {change.step}: {name}={_written(change.value)}{unit}")
    return [f"# {line}\r\n" for line in lines]


def table(run: Run) -> str:
    """The numbers along the run as CSV: a row for each step that was looked at, a block of columns an arm.

    Lines that begin with # hold the settings.
    """
    text = io.StringIO()
    text.writelines(_heading(run))
    writer = csv.writer(text)
    titles = [f"{'AB'[i]} {methods.METHODS[arm.method].title}" for i, arm in enumerate(run.settings.arms)]
    writer.writerow(["step", *(f"{title}: {name}" for title in titles for name in NUMBERS)])
    rows: dict[float, list[Any]] = {}
    for number, series in enumerate(run.series):
        for step, *values in series.rows:
            blank: list[Any] = [""] * (len(NUMBERS) * len(titles))
            cells = [f"{value:.8g}" for value in values]
            rows.setdefault(step, blank)[number * len(NUMBERS) : (number + 1) * len(NUMBERS)] = cells
    writer.writerows([int(step), *row] for step, row in sorted(rows.items()))
    return text.getvalue()
