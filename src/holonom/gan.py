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

_LATENTS, _CHOSEN = 0, 1  # draws: of training, and of pictures to look at


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
    """Play the game for ``steps`` steps; both networks are changed.

    A step moves the discriminator D down

        mean log(1 + e^{−D(x)}) + mean log(1 + e^{D(G(z))})

    and then, with the same z, the generator G down the non-saturating mean log(1 + e^{−D(G(z))}), each by Adam.

        >>> generator, discriminator = Generator(), Discriminator()
        >>> train_gan(generator, discriminator, images, steps=10_000)
        >>> pictures = generator.eval()(latents(64, seed=1))

    Args:
        generator: z (N, latent) → pictures, as :class:`holonom.models.Generator`.
        discriminator: pictures → (N,) logits, positive for "real".
        images: (N, channels, height, width) on the networks' device, scaled as the generator's output is.
        steps: how many in all, those of a resumed run included.
        latent: length of z, which is standard normal.
        batch: images in a step.
        lr, betas: of both optimizers.
        seed: of the images' order and of every z.
        checkpoint: a file. If it exists the run continues from it, on a CPU bit for bit as if it had not stopped.
        checkpoint_every: steps between checkpoints.
        progress: called with (steps done, steps).

    Returns:
        (steps, 2) losses of discriminator and generator.
    """
    if not images.is_floating_point():
        raise TypeError(f"images must be floats, scaled as the generator's output is, got {images.dtype}")
    key = torch.tensor(seed, device=images.device)
    order = Shuffled(images, images, batch, key)
    rules = {"steps": steps, "latent": latent, "batch": batch, "lr": lr, "betas": tuple(betas), "seed": seed}
    game = _Game(generator, discriminator, rules, torch.zeros(steps, 2, device=images.device))
    start = game.load(checkpoint) if checkpoint is not None and checkpoint.exists() else 0
    layout = Layout([torch.Size((batch, latent))], [0], images.device)
    rows = torch.empty(0)
    generator.train()
    discriminator.train()
    for step in range(start, steps):
        epoch, place = divmod(step, order.per_epoch)
        if place == 0 or step == start:
            rows = order.order(epoch)
        game.play(step, images[rows[place]], layout.draw(key, torch.full_like(key, step), _LATENTS)[0].to(images.dtype))
        if checkpoint is not None and ((step + 1) % checkpoint_every == 0 or step + 1 == steps):
            game.save(checkpoint, step + 1)
        if progress is not None:
            progress(step + 1, steps)
    return game.losses.cpu()


def latents(count: int, latent: int = 100, *, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """(count, latent) standard normals: the same for a seed on every device, to rounding, and none of training's."""
    key = torch.tensor(seed, device=device)
    layout = Layout([torch.Size((count, latent))], [0], key.device)
    return layout.draw(key, torch.zeros_like(key), _CHOSEN)[0]


class _Game:
    """Two networks, their optimizers, and the losses so far; ``rules`` are what a checkpoint must agree on."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module, rules: dict[str, Any], losses: Tensor) -> None:
        self.players = {"generator": generator, "discriminator": discriminator}
        self.optimizers = {
            name: torch.optim.Adam(player.parameters(), rules["lr"], betas=rules["betas"])
            for name, player in self.players.items()
        }
        self.rules = rules
        self.losses = losses

    def play(self, step: int, real: Tensor, z: Tensor) -> None:
        generator, discriminator = self.players.values()
        made = generator(z)
        of_discriminator = softplus(-discriminator(real)).mean() + softplus(discriminator(made.detach())).mean()
        self._descend("discriminator", of_discriminator)
        of_generator = softplus(-discriminator(made)).mean()
        self._descend("generator", of_generator)
        self.losses[step] = torch.stack([of_discriminator.detach(), of_generator.detach()])

    def _descend(self, name: str, loss: Tensor) -> None:
        parameters = list(self.players[name].parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.grad = gradient
        self.optimizers[name].step()
        self.optimizers[name].zero_grad()

    def save(self, path: Path, step: int) -> None:
        state: dict[str, Any] = {"step": step, "losses": self.losses, "rules": self.rules}
        for name, player in self.players.items():
            state[name] = player.state_dict()
            state[f"{name}'s optimizer"] = self.optimizers[name].state_dict()
        save(state, path)

    def load(self, path: Path) -> int:
        state = load(path, "delete it to start over", self.losses.device)
        try:
            then = state["rules"]
            if changed := [name for name, value in self.rules.items() if then[name] != value]:
                differences = ", ".join(f"{name} {then[name]}, not {self.rules[name]}" for name in changed)
                raise ValueError(f"it is of another game: {differences}")
            for name, player in self.players.items():
                player.load_state_dict(state[name])
                self.optimizers[name].load_state_dict(state[f"{name}'s optimizer"])
        except Exception as error:
            raise CheckpointError(f"{path} cannot be continued ({error}); delete it to start over") from None
        self.losses.copy_(state["losses"])
        return int(state["step"])
