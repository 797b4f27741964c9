"""The test loss on the lines of stored networks, kept beside them: a line is walked once for all experiments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .... import landscape
from ....files import load, save
from ...run import Array
from .images import Photographs
from .networks import Network, Networks, untrained
from .recipes import Recipe

Blocks = Mapping[str, "str | list[str]"]
WHOLE = "whole network"


class Walks:
    """Lines (6.1) of the whole network and (6.2) of its blocks, at equally spaced points.

    Args:
        tested: test images that the loss is the mean over.
        points: of a line.
    """

    def __init__(self, networks: Networks, data: Photographs, tested: int, points: int) -> None:
        self.networks = networks
        self.device = data.device
        self.alphas = np.linspace(0, 1, points)
        images, labels = data.test_images[:tested], data.test_labels[:tested]
        self.tested = len(labels)
        self._evaluate = landscape.over((data.as_input(images), labels), {"loss": cross_entropy})

    def along(self, recipe: Recipe, network: Network, blocks: Blocks) -> dict[str, Array]:
        """The loss on the line of the whole network and of every block; not a number if the network diverged."""
        wanted = {WHOLE: "*", **blocks}
        if network.diverged:
            return {name: np.full_like(self.alphas, np.nan) for name in wanted}
        path = self.networks.lines(recipe)
        known: dict[str, Tensor] = load(path, "delete it to walk again") if path.exists() else {}
        names = {name: repr((len(self.alphas), self.tested, block)) for name, block in wanted.items()}
        if missing := {name: block for name, block in wanted.items() if names[name] not in known}:
            known |= {names[name]: values for name, values in self._walk(recipe, network, missing).items()}
            save(known, path)
        return {name: known[own].numpy() for name, own in names.items()}

    def _walk(self, recipe: Recipe, network: Network, blocks: Blocks) -> dict[str, Tensor]:
        half = torch.bfloat16 if self.device.type == "cuda" else None
        paths = landscape.layerwise(
            untrained(recipe).to(self.device), network.initial, network.trained, self._evaluate, blocks,
            len(self.alphas), autocast=half, nonfinite="keep", progress=False,
        )  # fmt: skip
        return {name: path["loss"] for name, path in paths.items()}
