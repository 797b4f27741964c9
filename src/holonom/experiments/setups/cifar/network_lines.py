"""The test loss on the lines of cached networks; each line is evaluated once for all experiments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .... import landscape
from ...run import Array
from .images import CifarImages
from .networks import LINES, Network, Networks, untrained
from .recipes import Recipe

Blocks = Mapping[str, "str | list[str]"]
WHOLE = "whole network"


class NetworkLines:
    """Lines (6.1) of the whole network and (6.2) of its blocks, at equally spaced points.

    Args:
        tested: number of test images that the loss is averaged over.
        points: of a line.
    """

    def __init__(self, networks: Networks, data: CifarImages, tested: int, points: int) -> None:
        self.networks = networks
        self.device = data.device
        self.alphas = np.linspace(0, 1, points)
        images, labels = data.test_images[:tested], data.test_labels[:tested]
        self.tested = len(labels)
        self._evaluate = landscape.over((data.as_input(images), labels), {"loss": cross_entropy})

    def losses(self, recipe: Recipe, network: Network, blocks: Blocks) -> dict[str, Array]:
        """On the line of the whole network and of every block; NaN if the network diverged."""
        wanted = {WHOLE: "*", **blocks}
        if network.diverged:
            return {name: np.full_like(self.alphas, np.nan) for name in wanted}
        cache = self.networks.cache(recipe)
        lines: dict[str, Tensor] = cache.read(LINES, {})
        keys = {name: repr((len(self.alphas), self.tested, block)) for name, block in wanted.items()}
        if missing := {name: block for name, block in wanted.items() if keys[name] not in lines}:
            lines |= {keys[name]: values for name, values in self._evaluate_lines(recipe, network, missing).items()}
            cache.write(LINES, lines)
        return {name: lines[key].numpy() for name, key in keys.items()}

    def _evaluate_lines(self, recipe: Recipe, network: Network, blocks: Blocks) -> dict[str, Tensor]:
        half = torch.bfloat16 if self.device.type == "cuda" else None
        paths = landscape.layerwise(
            untrained(recipe).to(self.device), network.initial, network.trained, self._evaluate, blocks,
            len(self.alphas), autocast=half, nonfinite="keep", progress=False,
        )  # fmt: skip
        return {name: path["loss"] for name, path in paths.items()}
