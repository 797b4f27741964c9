"""What the papers' methods do that others cannot: the experiment of `make run`.

Parts of paper Fig. 4 and thesis Fig. 3.8 at their published settings, and two equalities.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...ensemble import Ensemble
from ...models import shlp
from ...optimizer import Langevin
from .. import ranks
from ..base import experiment
from ..claims import Claim, fact, greater
from ..run import Fit, Run
from ..setups.planar import spiral_depth
from ..setups.planar.methods import adam, adlala, sgd
from ..setups.planar.problem import TWO_TURNS, Problem, loss, problem, small_gaussian
from ..setups.planar.side_by_side import Arm, Row, side_by_side
from ..setups.shared.curves import HEADINGS, late_mean

FREE, STARTED, ORTHOGONAL = "SGD, deep", "SGD from an orthogonal start, deep", "o-CoLA, deep"
SMALL = {
    "SGD, small": sgd(0.1),
    "Adam, small": adam(0.005),
    "AdLaLa, small": adlala(0.25, driving_noise=0.01, coupling=0.1, friction=0.5),
}
TIME = {FREE: 20, STARTED: 10, ORTHOGONAL: 45, "SGD, small": 9, "Adam, small": 4, "AdLaLa, small": 10}  # shares
HELD, ROUNDING = 1e-6, 1e-12


@experiment(
    "headline",
    title="What the papers' methods do that others cannot",
    source="a selection: paper Fig. 4 and Algorithm 1; Fig. 3.8 and Algorithm 2.2 of the thesis",
    says="On the four-turn spiral o-CoLA, whose weights stay orthogonal, is more accurate than SGD and than SGD from "
    "the same orthogonal start for perceptrons with more than 3 hidden layers (h = 0.1, τ = 0). In 10,000 steps a "
    "network with 20 units learns the two-turn spiral to 93.4 % by AdLaLa, to 83.7 % by Adam and to 79 % by SGD.",
    smoke={"replicas": 2, "depth": 3, "epochs": 2, "small_runs": 2, "steps": 4, "equal_steps": 20},
    ci={"replicas": 6, "depth": 8, "epochs": 600, "small_runs": 30, "steps": 10_000, "equal_steps": 1000},
    paper={"replicas": 10, "depth": 8, "epochs": 600, "small_runs": 100, "steps": 10_000, "equal_steps": 1000},
)
def headline(run: Run, settings: SimpleNamespace) -> list[Claim]:
    depth, epochs, steps = settings.depth, settings.epochs, settings.steps
    with run.whole(TIME):
        sets = spiral_depth.data(run)
        deep = {
            FREE: spiral_depth.free(run, FREE, sets, depth, epochs),
            STARTED: spiral_depth.free(run, STARTED, sets, depth, epochs, orthogonal=True),
            ORTHOGONAL: spiral_depth.constrained(run, ORTHOGONAL, sets, depth, epochs),
        }
        task = problem(replace(run, replicas=settings.small_runs), TWO_TURNS, train=500, hidden=20, percent=5)
        small = {name: task.fit(name, make, steps, start=small_gaussian) for name, make in SMALL.items()}
    fits = {**deep, **small}
    run.save_curves(fits)
    run.summary(fits, {metric: HEADINGS[metric] for metric in ("test_loss", "test_accuracy")})
    picture(run, deep, small, sets, task, settings)
    run.note(
        "These claims are a selection: those that two cores decide in two minutes. docs/results.md has all claims of "
        "the papers, also those that do not hold."
    )
    run.note(
        f"“Deep” is {depth} hidden layers of 100 ReLU units on a spiral of four turns, “small” one layer of 20 units "
        "on one of two turns. Run by run, the methods of a task share data, its order and initial weights, except that "
        "the first starts from PyTorch's. Accuracies of deep networks fluctuate from step to step; claims use their "
        "means over the last tenth of training."
    )
    late = {name: 100 * late_mean(fit) for name, fit in deep.items()}
    final = {name: 100 * fit.final("test_accuracy") for name, fit in small.items()}
    left = ranks.largest(orthogonality_error(deep[STARTED].ensemble))
    same = ranks.largest(difference_from_sgd(task, settings.equal_steps))
    held = deep[ORTHOGONAL].residual
    return [
        greater("deep: o-CoLA is more accurate than SGD, %", "higher (Fig. 4)", late[ORTHOGONAL], late[FREE]),
        greater("deep: … and than SGD from the same start", "higher (Fig. 4)", late[ORTHOGONAL], late[STARTED]),
        fact(
            "deep: QᵀQ = I after training, to 1e-6", "always", held, held < HELD,
            f"largest entry of QᵀQ − I; with SGD from the same start {left:.2g}",
        ),
        greater("small: AdLaLa is more accurate than Adam, %", "93.4 against 83.7", final["AdLaLa, small"],
                final["Adam, small"]),
        greater("small: AdLaLa is more accurate than SGD, %", "93.4 against 79", final["AdLaLa, small"],
                final["SGD, small"]),
        fact(
            "OBA without noise is torch's SGD", "the same method", same, same < ROUNDING,
            f"largest difference of a weight after {settings.equal_steps} steps with momentum, in double precision",
        ),
    ]  # fmt: skip


@torch.no_grad()
def orthogonality_error(ensemble: Ensemble) -> float:
    """The largest entry of WᵀW − I over the weights between hidden layers."""
    square = [w for w in ensemble.parameters() if w.ndim == 3 and w.shape[-1] == w.shape[-2]]
    return max(float((w.mT @ w - torch.eye(w.shape[-1], device=w.device)).abs().max()) for w in square)


def difference_from_sgd(task: Problem, steps: int) -> float:
    """The largest difference of two small networks' weights, trained by OBA and by torch's SGD on one run's points."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.run.seed)
        model = shlp(2, task.hidden, 1).double()
    models = model, copy.deepcopy(model)
    _take_steps(task, models[0], Langevin.like_sgd(models[0].parameters(), lr=0.1, momentum=0.9, scheme="OBA"), steps)
    _take_steps(task, models[1], torch.optim.SGD(models[1].parameters(), lr=0.1, momentum=0.9), steps)
    with torch.no_grad():
        return max(float((p - q).abs().max()) for p, q in zip(*(m.parameters() for m in models), strict=True))


def _take_steps(task: Problem, model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    x, y = task.x[0].double().cpu(), task.y[0].double().cpu()
    for step in range(steps):
        batch = torch.arange(step * task.batch, (step + 1) * task.batch) % len(x)
        optimizer.zero_grad()
        loss(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def picture(
    run: Run, deep: dict[str, Fit], small: dict[str, Fit], sets: list[Tensor], task: Problem, settings: SimpleNamespace
) -> None:
    _, _, x, y = sets
    titles = {FREE: "SGD", STARTED: "SGD, orthogonal start", ORTHOGONAL: "o-CoLA: always orthogonal"}
    rows = [
        Row(
            f"{settings.depth} hidden layers\na spiral of 4 turns", x, y,
            [Arm(titles[name], fit.ensemble, late_mean(fit), name == ORTHOGONAL) for name, fit in deep.items()],
        ),
        Row(
            "20 hidden units\na spiral of 2 turns", task.x_test, task.y_test,
            [
                Arm(name.removesuffix(", small") + (": adaptive thermostat" if ours else ""), fit.ensemble,
                    fit.final("test_accuracy"), ours)
                for name, fit in small.items()
                for ours in [name == "AdLaLa, small"]
            ],
        ),
    ]  # fmt: skip
    caption = (
        "Colours: the class that the network sees; dots: test points; black: its boundary. Every map is the run of "
        "median accuracy. Right: all runs, a bar at the mean. The claims below were selected for the time they need, "
        "two minutes; some of the papers' claims do not hold."
    )
    side_by_side(run, "headline", caption, rows)
