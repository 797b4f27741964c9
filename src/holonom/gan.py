"""Training a generator against a discriminator (Goodfellow et al., 2014; Radford et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from ._files import load, save
from ._random.philox import Layout
from .batches import Shuffled
from .errors import CheckpointError

Progress = Callable[[int, int], None]

_TRAINING, _SAMPLES = 0, 1  # streams of the random numbers


def train_gan(
    generator: nn.Module,
    discriminator: nn.Module,
    images: Tensor,
    steps: int,
    *,
    latent: int = 100,
    batch: int = 128,
    lr: float = 2e-4,
    betas: tuple[float, float] = (0.5, 0.999),
    seed: int = 0,
    checkpoint: Path | None = None,
    checkpoint_every: int = 500,
    progress: Progress | None = None,
) -> Tensor:
    r"""Train both networks for ``steps`` steps, in place.

    A step of the discriminator D descends

    .. math:: \operatorname{mean} \log(1 + e^{-D(x)}) + \operatorname{mean} \log(1 + e^{D(G(z))})

    and then, with the same z, a step of the generator G descends the non-saturating loss
    mean log(1 + e^{−D(G(z))}), each by Adam.

        >>> generator, discriminator = Generator(), Discriminator()
        >>> train_gan(generator, discriminator, images, steps=10_000)
        >>> pictures = generator.eval()(latents(64, seed=1))

    Args:
        generator: z (N, latent) → pictures, as :class:`holonom.models.Generator`.
        discriminator: pictures → (N,) logits, positive for "real".
        images: (N, channels, height, width) on the networks' device, scaled as the generator's output is.
        steps: total number, including those before a resume.
        latent: length of z, which is standard normal.
        batch: images in a step.
        lr, betas: of both optimizers.
        seed: of the order of images and of every z.
        checkpoint: a file. If it exists, the run continues from it; on a CPU bit-equal to an uninterrupted run.
        checkpoint_every: steps between checkpoints.
        progress: called with (steps done, steps).

    Returns:
        (steps, 2) losses of discriminator and generator.
    """
    if not images.is_floating_point():
        raise TypeError(f"images must be floats, scaled as the generator's output is, got {images.dtype}")
    key = torch.tensor(seed, device=images.device)
    order = Shuffled(images, images, batch, key)
    settings = {"steps": steps, "latent": latent, "batch": batch, "lr": lr, "betas": tuple(betas), "seed": seed}
    trainer = _Trainer(generator, discriminator, settings, torch.zeros(steps, 2, device=images.device))
    start = trainer.load(checkpoint) if checkpoint is not None and checkpoint.exists() else 0
    layout = Layout([torch.Size((batch, latent))], [0], images.device)
    rows = torch.empty(0)
    generator.train()
    discriminator.train()
    for step in range(start, steps):
        epoch, place = divmod(step, order.per_epoch)
        if place == 0 or step == start:
            rows = order.order(epoch)
        z = layout.draw(key, torch.full_like(key, step), _TRAINING)[0].to(images.dtype)
        trainer.step(step, images[rows[place]], z)
        if checkpoint is not None and ((step + 1) % checkpoint_every == 0 or step + 1 == steps):
            trainer.save(checkpoint, step + 1)
        if progress is not None:
            progress(step + 1, steps)
    return trainer.losses.cpu()


def latents(count: int, latent: int = 100, *, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """(count, latent) standard normals: equal on every device up to rounding, and independent of those of training."""
    key = torch.tensor(seed, device=device)
    layout = Layout([torch.Size((count, latent))], [0], key.device)
    return layout.draw(key, torch.zeros_like(key), _SAMPLES)[0]


class _Trainer:
    """Two networks, their optimizers and the losses so far; a checkpoint must have the same ``settings``."""

    def __init__(
        self, generator: nn.Module, discriminator: nn.Module, settings: dict[str, Any], losses: Tensor
    ) -> None:
        self.networks = {"generator": generator, "discriminator": discriminator}
        self.optimizers = {
            name: torch.optim.Adam(network.parameters(), settings["lr"], betas=settings["betas"])
            for name, network in self.networks.items()
        }
        self.settings = settings
        self.losses = losses

    def step(self, number: int, real: Tensor, z: Tensor) -> None:
        generator, discriminator = self.networks.values()
        made = generator(z)
        discriminator_loss = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        self._descend("discriminator", discriminator_loss)
        generator_loss = softplus(-discriminator(made)).mean()
        self._descend("generator", generator_loss)
        self.losses[number] = torch.stack([discriminator_loss.detach(), generator_loss.detach()])

    def _descend(self, name: str, loss: Tensor) -> None:
        parameters = list(self.networks[name].parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        self.optimizers[name].step()
        self.optimizers[name].zero_grad()

    def save(self, path: Path, step: int) -> None:
        # "rules" is the key of the settings in existing files.
        state: dict[str, Any] = {"step": step, "losses": self.losses, "rules": self.settings}
        for name, network in self.networks.items():
            state[name] = network.state_dict()
            state[f"{name}'s optimizer"] = self.optimizers[name].state_dict()
        save(state, path)

    def load(self, path: Path) -> int:
        state = load(path, "delete it to start over", self.losses.device)
        try:
            saved = state["rules"]
            if changed := [name for name, value in self.settings.items() if saved[name] != value]:
                differences = ", ".join(f"{name} {saved[name]}, not {self.settings[name]}" for name in changed)
                raise ValueError(f"it was made with other settings: {differences}")
            for name, network in self.networks.items():
                network.load_state_dict(state[name])
                self.optimizers[name].load_state_dict(state[f"{name}'s optimizer"])
        except Exception as error:
            raise CheckpointError(f"{path} cannot be continued ({error}); delete it to start over") from None
        self.losses.copy_(state["losses"])
        return int(state["step"])
