"""Paper Fig. 1: SGD, C-SGD, SGLD and C-SGLD on a noisy two-turn spiral.

    python -m holonom.experiments.fig1 --out results/fig1

A 2-500-1 ReLU perceptron, 100 training points, batches of 2, h = 0.05; circle radii r₀ = 1 and
r₁ = 5; τ = 5e-5. The paper trains for 10,000 epochs and shows one run; the default here is 1200
epochs of eight replicas at once, which takes about two minutes on two cores. Claim (paper: 81 %
against 91.7 %): constraints with noise generalise better than plain SGD. At this small scale the
constrained runs are still catching up and SGD has only begun to overfit, so expect "inconclusive";
``--epochs 10000`` is the paper's length (14 minutes on two cores).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..constraints import Circle
from ..data import spirals
from ..optimizer import Langevin

STEP, TEMPERATURE, RADII, BATCH = 0.05, 5e-5, (1.0, 5.0), 2


class Perceptrons(nn.Module):
    """R independent single-hidden-layer perceptrons, their parameters stacked along the first dimension."""

    def __init__(self, replicas: int, hidden: int = 500, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, inputs: int) -> nn.Parameter:
            bound = 1 / math.sqrt(inputs)
            return nn.Parameter(torch.empty(replicas, *shape).uniform_(-bound, bound, generator=generator))

        self.weight1, self.bias1 = uniform(2, hidden, inputs=2), uniform(1, hidden, inputs=2)
        self.weight2, self.bias2 = uniform(hidden, 1, inputs=hidden), uniform(1, 1, inputs=hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(R, N, 2) → (R, N) logits."""
        return torch.baddbmm(self.bias2, torch.baddbmm(self.bias1, x, self.weight1).relu(), self.weight2)[..., 0]


def sgd(model: Perceptrons) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), STEP)


def overdamped(model: Perceptrons, constrained: bool, temperature: float) -> torch.optim.Optimizer:
    """C-SGD, SGLD and C-SGLD are one word, L, with and without circles and noise."""
    radii = RADII if constrained else (None, None)
    spaces = [None if r is None else Circle(r) for r in radii]
    groups = [
        {"params": [model.weight1], "constraint": spaces[0]},
        {"params": [model.weight2], "constraint": spaces[1]},
        {"params": [model.bias1, model.bias2]},
    ]
    return Langevin(groups, STEP, scheme="L", temperature=temperature)


METHODS: dict[str, Callable[[Perceptrons], torch.optim.Optimizer]] = {
    "SGD": sgd,
    "C-SGD": lambda model: overdamped(model, True, 0.0),
    "SGLD": lambda model: overdamped(model, False, TEMPERATURE),
    "C-SGLD": lambda model: overdamped(model, True, TEMPERATURE),
}


def make_data(replicas: int, seed: int, train: int = 100, test: int = 2000) -> list[Tensor]:
    """Fresh spirals for every replica: x_train, y_train, x_test, y_test with the replicas in front."""
    generator = torch.Generator().manual_seed(seed)
    sets = [(*spirals(train, generator=generator), *spirals(test, generator=generator)) for _ in range(replicas)]
    return [torch.stack(parts) for parts in zip(*sets, strict=True)]


def batches(replicas: int, points: int, size: int, generator: torch.Generator) -> Tensor:
    """One epoch of indices, (batches, R, size): every replica shuffles for itself."""
    order = torch.rand(replicas, points, generator=generator).argsort(1)
    return order.reshape(replicas, -1, size).transpose(0, 1)


@torch.no_grad()
def evaluate(model: Perceptrons, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy per replica."""
    logits = model(x)
    loss = binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)
    return loss, ((logits > 0) == (y > 0.5)).float().mean(1)


def train(name: str, data: list[Tensor], epochs: int, seed: int, points: int = 40) -> dict[str, Any]:
    """Train all replicas with one method; returns its curves and the model."""
    from tqdm import tqdm

    torch.set_num_threads(1)  # the tensors are small; the other cores train the other methods
    line = list(METHODS).index(name)
    x, y, x_test, y_test = data
    replicas = x.shape[0]
    model = Perceptrons(replicas, seed=seed)
    optimizer = METHODS[name](model)
    shuffle = torch.Generator().manual_seed(seed + 1)
    rows = torch.arange(replicas)[:, None]
    curve: dict[str, list[Any]] = {"epoch": [], "train_loss": [], "test_loss": [], "test_accuracy": []}
    every = max(1, epochs // points)
    for epoch in tqdm(range(epochs + 1), desc=f"{name:>7}", unit="epoch", mininterval=1.0, position=line):
        if epoch % every == 0 or epoch == epochs:
            loss, accuracy = evaluate(model, x_test, y_test)
            curve["epoch"].append(epoch)
            curve["train_loss"].append(evaluate(model, x, y)[0].tolist())
            curve["test_loss"].append(loss.tolist())
            curve["test_accuracy"].append(accuracy.tolist())
        if epoch == epochs:
            break
        index = batches(replicas, x.shape[1], BATCH, shuffle)
        for inputs, labels in zip(x[rows, index].unbind(0), y[rows, index].unbind(0), strict=True):
            # Each replica's mean loss, summed: every replica gets its own gradient.
            loss = binary_cross_entropy_with_logits(model(inputs), labels, reduction="sum") / BATCH
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    residual = max(optimizer.residuals()) if isinstance(optimizer, Langevin) else 0.0
    return {"curve": curve, "model": model, "residual": residual}


def verdict(better: np.ndarray[Any, Any], worse: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Is the paired mean difference above zero? A 95 % interval by Student's t decides."""
    from scipy.stats import t

    difference = better - worse
    n = len(difference)
    mean = float(difference.mean())
    half = float(t.ppf(0.975, n - 1) * difference.std(ddof=1) / math.sqrt(n)) if n > 1 else math.inf
    word = "holds" if mean > half else "does not hold" if mean < -half else "inconclusive"
    return {"difference": mean, "half_width": half, "runs": n, "verdict": word}


def run(epochs: int, replicas: int, seed: int) -> tuple[dict[str, Any], dict[str, Any], list[Tensor]]:
    """Train every method; returns what goes into result.json, the models, and the data."""
    data = make_data(replicas, seed)
    started = time.perf_counter()
    jobs = min(len(METHODS), os.cpu_count() or 1)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = {name: pool.submit(train, name, data, epochs, seed) for name in METHODS}
        results = {name: run.result() for name, run in runs.items()}
    seconds = time.perf_counter() - started
    final = {
        name: {key: np.array(result["curve"][key][-1]) for key in ("train_loss", "test_loss", "test_accuracy")}
        for name, result in results.items()
    }
    accuracy = verdict(final["C-SGLD"]["test_accuracy"], final["SGD"]["test_accuracy"])
    loss = verdict(final["SGD"]["test_loss"], final["C-SGLD"]["test_loss"])
    record = {
        "id": "fig1",
        "epochs": epochs,
        "replicas": replicas,
        "seed": seed,
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
        "methods": {
            name: {key: [float(v.mean()), float(v.std(ddof=1)) if replicas > 1 else 0.0] for key, v in values.items()}
            | {"residual": results[name]["residual"]}
            for name, values in final.items()
        },
        "claims": [
            {"name": "C-SGLD's test accuracy exceeds SGD's", "published": "91.7 % against 81 %", **accuracy},
            {"name": "C-SGLD's test loss is below SGD's", "published": "stable against rising", **loss},
        ],
    }
    return record, results, data


def show(record: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Fig. 1: spiral, {record['replicas']} runs, {record['epochs']} epochs (mean ± sd)")
    for column in ("method", "train loss", "test loss", "test accuracy", "constraint violation"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, row in record["methods"].items():
        accuracy = [100 * v for v in row["test_accuracy"]]
        table.add_row(
            name,
            "{:.3f} ± {:.3f}".format(*row["train_loss"]),
            "{:.3f} ± {:.3f}".format(*row["test_loss"]),
            "{:.1f} ± {:.1f} %".format(*accuracy),
            f"{row['residual']:.0e}" if row["residual"] else "–",
        )
    console = Console()
    console.print(table)
    for claim in record["claims"]:
        console.print(
            f"{claim['name']} (paper: {claim['published']}): [bold]{claim['verdict']}[/bold], "
            f"difference {claim['difference']:+.3f} ± {claim['half_width']:.3f} (95 %, {claim['runs']} runs)"
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1200)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/fig1"))
    options = parser.parse_args(arguments)
    if options.epochs < 1 or options.replicas < 1:
        parser.error("--epochs and --replicas must be at least 1")
    from .fig1_figure import draw

    record, results, data = run(options.epochs, options.replicas, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "result.json").write_text(json.dumps(record, indent=2) + "\n")
    figure = draw(results, data, options.out / "fig1.png")
    show(record)
    print(f"figure: {figure}\nnumbers: {options.out / 'result.json'}")


if __name__ == "__main__":
    main()
