"""The picture of Fig. 1: decision boundaries over the data, and loss curves below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

COLOURS = ("#c44e52", "#4c72b0")


def draw(results: dict[str, Any], data: list[Tensor], path: Path, bound: float = 1.35, grid: int = 300) -> Path:
    """One column a method: training points, test points, curves (the first replica's boundary, all replicas' bands)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axis = torch.linspace(-bound, bound, grid)
    plane = torch.cartesian_prod(axis, axis)
    figure, axes = plt.subplots(3, len(results), figsize=(3.4 * len(results), 9.6), squeeze=False)
    for column, (name, result) in enumerate(results.items()):
        replicas = data[0].shape[0]
        with torch.no_grad():
            probability = torch.sigmoid(result["model"](plane.expand(replicas, -1, -1))[0]).reshape(grid, grid).T
        for row, (x, y, size) in enumerate([(data[0][0], data[1][0], 18), (data[2][0], data[3][0], 4)]):
            panel = axes[row, column]
            panel.contourf(axis, axis, probability, levels=np.linspace(0, 1, 21), cmap="RdBu", alpha=0.75)
            panel.contour(axis, axis, probability, levels=[0.5], colors="black", linewidths=1.0)
            for label, colour in enumerate(COLOURS):
                panel.scatter(*x[y == label].T, s=size, c=colour, edgecolors="white", linewidths=0.3)
            panel.set(xlim=(-bound, bound), ylim=(-bound, bound), xticks=[], yticks=[], aspect="equal")
        accuracy = 100 * np.mean(result["curve"]["test_accuracy"][-1])
        axes[0, column].set_title(f"{name}\ntest accuracy {accuracy:.1f} % (mean)", fontsize=11)
        _curves(axes[2, column], result["curve"], first=column == 0)
    axes[0, 0].set_ylabel("training data", fontsize=11)
    axes[1, 0].set_ylabel("test data", fontsize=11)
    top = max(np.max(result["curve"]["test_loss"]) for result in results.values())
    for panel in axes[2]:
        panel.set_ylim(0, 1.05 * top)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _curves(panel: Any, curve: dict[str, Any], first: bool) -> None:
    epochs = np.array(curve["epoch"])
    for key, label, colour in (("train_loss", "training", "#555555"), ("test_loss", "test", "#c44e52")):
        values = np.array(curve[key])
        panel.plot(epochs, values.mean(1), color=colour, label=f"{label} loss")
        panel.fill_between(epochs, values.min(1), values.max(1), color=colour, alpha=0.18, linewidth=0)
    panel.set_xlabel("epoch")
    if first:
        panel.set_ylabel("loss: mean and range over runs")
        panel.legend(frameon=False, fontsize=9)
