"""Networks on a GPU: recorded steps are the steps themselves, trainings resume, lines are walked in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.experiments.setups.cifar.images import CifarImages
from holonom.experiments.setups.cifar.network_lines import NetworkLines
from holonom.experiments.setups.cifar.networks import Networks, untrained
from holonom.experiments.setups.cifar.recipes import RESNETS, VGGS, Recipe
from holonom.experiments.setups.cifar.trainer import Trainer

from ..random_images import SMALL, image_set

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
RECIPE = replace(SMALL, width=8, images=64, batch=8)


class Uncaptured(Trainer):
    """The same steps, one by one."""

    def _load(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        super()._load(images, labels)
        self._graphed._cuda = False


def trained(kind: type[Trainer], recipe: Recipe, compiled: bool = False) -> tuple[Trainer, list[float]]:
    data = CifarImages(image_set(64), CUDA)
    trainer = kind(recipe, untrained(recipe), data.as_input, CUDA, compiled)
    return trainer, [trainer.train_epoch(epoch, *data.epoch(recipe, epoch))[0] for epoch in range(recipe.epochs)]


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


@pytest.mark.parametrize(
    ("architecture", "compiled"), [*((kind, False) for kind in (*RESNETS, *VGGS)), ("resnet18", True)]
)
def test_recorded_steps_are_the_steps(architecture: str, compiled: bool) -> None:
    """To the rounding of bfloat16, since kernels may add in any order; every epoch has a step size of its own.

    Rounded elsewhere, as in fused kernels, gradients of this network differ by a third (so do bfloat16's from
    float32's), and with large steps networks go different ways.
    """
    recipe = replace(RECIPE, architecture=architecture, step=1e-4 if compiled else 0.01)
    recorded, losses = trained(Trainer, recipe, compiled)
    plain, others = trained(Uncaptured, recipe)
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(losses, others, rtol=0.05)
    assert all(p.dtype == torch.float32 for p in recorded.model.parameters())
    ours, theirs, start = (flat(model) for model in (recorded.model, plain.model, untrained(recipe)))
    apart = float((ours - theirs).norm() / (theirs - start).norm())
    assert apart < (0.5 if compiled else 0.2), f"{apart:.2g} of the way apart"
    counted = [x for name, x in recorded.model.state_dict().items() if name.endswith("num_batches_tracked")]
    assert all(int(x) == 24 for x in counted), "every step ran once"


@pytest.mark.parametrize("method", ["o-CoLA-ud", "o-CoLA-od"])
def test_recorded_steps_keep_kernels_orthogonal(method: str) -> None:
    recipe = replace(RECIPE, architecture="resnet34", method=method, step=0.01)
    recorded, losses = trained(Trainer, recipe)
    _, others = trained(Uncaptured, recipe)
    np.testing.assert_allclose(losses, others, rtol=0.05)
    assert isinstance(recorded.optimizer, Langevin)
    assert max(recorded.optimizer.residuals()) < 1e-6
    recorded.optimizer.check()
    assert [group["step"] for group in recorded.optimizer.param_groups] == [24] * len(recorded.optimizer.param_groups)


def test_an_interrupted_training_goes_on(tmp_path: Path) -> None:
    data = CifarImages(image_set(64), CUDA)

    def stop(epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Networks(tmp_path, data, save_every=0).get(RECIPE, stop)
    seen: list[int] = []
    network = Networks(tmp_path, data, save_every=0).get(RECIPE, seen.append)
    assert seen == [3]
    assert not network.diverged
    assert all(x.device.type == "cpu" and x.is_contiguous() for x in network.trained.values())


def test_a_line_ends_at_the_networks_test_loss(tmp_path: Path) -> None:
    data = CifarImages(image_set(64), CUDA)
    networks = Networks(tmp_path, data)
    network = networks.get(RECIPE)
    losses = NetworkLines(networks, data, 10, 5).losses(RECIPE, network, {"first": "stages.0", "last": "head"})
    for values in losses.values():
        assert values[-1] == pytest.approx(network.curves["test_loss"][-1], rel=0.02)
