"""Training of a GAN: its steps against formulas, resuming, and what it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holonom.errors import CheckpointError, EnsembleError
from holonom.gan import latents, train_gan
from holonom.models import Discriminator, Generator

LATENT, SIZE, BATCH, RATE, BETAS = 2, 3, 8, 0.01, (0.5, 0.999)


class Line(nn.Module):
    """x ↦ wx, (N, inputs) → (N, outputs); records its inputs."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        out: Tensor = x @ self.weight
        return out.squeeze(-1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class Adam:
    """Kingma and Ba's Algorithm 1."""

    def __init__(self) -> None:
        self.m, self.v, self.t = 0.0, 0.0, 0

    def step(self, w: np.ndarray, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * g
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * g**2
        m, v = self.m / (1 - BETAS[0] ** self.t), self.v / (1 - BETAS[1] ** self.t)
        return w - RATE * m / (np.sqrt(v) + 1e-8)


def test_steps_are_the_formulas() -> None:
    """Two linear maps, with gradients and Adam written out."""
    x, w, u = normal(BATCH, SIZE), normal(LATENT, SIZE, seed=1), normal(SIZE, 1, seed=2)
    generator, discriminator = Line(w), Line(u)
    losses = train_gan(
        generator, discriminator, x, 6, latent=LATENT, batch=BATCH, lr=RATE, betas=BETAS, seed=5
    )  # the batch is the whole set, so that its order does not matter
    real, W, U = x.numpy(), w.numpy(), u.numpy()
    of_generator, of_discriminator = Adam(), Adam()
    for step in range(6):
        z = generator.seen[step].numpy()
        fake = z @ W
        d_real, d_fake = real @ U, fake @ U
        loss = np.log1p(np.exp(-d_real)).mean() + np.log1p(np.exp(d_fake)).mean()
        np.testing.assert_allclose(losses[step, 0], loss, rtol=1e-6)
        U = of_discriminator.step(U, (-real.T @ sigmoid(-d_real) + fake.T @ sigmoid(d_fake)) / BATCH)
        d_fake = fake @ U
        np.testing.assert_allclose(losses[step, 1], np.log1p(np.exp(-d_fake)).mean(), rtol=1e-6)
        W = of_generator.step(W, -z.T @ (sigmoid(-d_fake) @ U.T) / BATCH)
    np.testing.assert_allclose(discriminator.weight.detach(), U, rtol=1e-11)
    np.testing.assert_allclose(generator.weight.detach(), W, rtol=1e-11)
    assert all(p.grad is None for p in (generator.weight, discriminator.weight))


def test_every_step_draws_new_latents_and_images() -> None:
    x = torch.arange(10.0, dtype=torch.float64)[:, None].repeat(1, 2)
    generator, discriminator = Line(normal(LATENT, 2)), Line(normal(2, 1))
    train_gan(generator, discriminator, x, 6, latent=LATENT, batch=4, seed=5)
    z = torch.stack(generator.seen)
    assert len(torch.unique(z)) == z.numel()
    real = torch.stack(discriminator.seen[::3])[..., 0]
    for epoch in real.view(3, 8).long():
        assert len(set(epoch.tolist())) == 8  # no image twice in an epoch
    assert not torch.equal(real[0], real[2])


def small(seed: int = 0) -> tuple[Generator, Discriminator]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Generator(width=2, depth=3), Discriminator(width=2, depth=3)


def train(
    steps: int, checkpoint: Path | None = None, stop: int | None = None, seed: int = 3, lr: float = 2e-4
) -> tuple[list[Tensor], Tensor]:
    """Train with 12 images; interrupted after ``stop`` steps if that is given."""
    networks = small()
    images = normal(12, 1, 28, 28).float().tanh()

    def progress(done: int, total: int) -> None:
        assert total == steps
        if done == stop:
            raise KeyboardInterrupt

    losses = train_gan(*networks, images, steps, batch=5, lr=lr, seed=seed, checkpoint=checkpoint, checkpoint_every=2,
                       progress=progress)  # fmt: skip
    return [x for network in networks for x in network.state_dict().values()], losses


def test_resuming_is_bit_equal(tmp_path: Path) -> None:
    random = torch.get_rng_state()
    expected, losses = train(7)
    with pytest.raises(KeyboardInterrupt):
        train(7, tmp_path / "gan.pt", stop=5)
    found, again = train(7, tmp_path / "gan.pt")
    assert torch.equal(losses, again)
    for ours, theirs in zip(expected, found, strict=True):
        assert torch.equal(ours, theirs)
    finished, _ = train(7, tmp_path / "gan.pt", stop=1)  # all steps are done
    for ours, theirs in zip(expected, finished, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(random, torch.get_rng_state())


def test_checkpoints_of_other_settings_are_refused(tmp_path: Path) -> None:
    train(4, tmp_path / "gan.pt")
    with pytest.raises(CheckpointError, match=r"gan\.pt cannot be continued .*other settings: steps 4, not 5"):
        train(5, tmp_path / "gan.pt")
    with pytest.raises(CheckpointError, match=r"lr 0\.0002, not 0\.01, seed 3, not 4"):
        train(4, tmp_path / "gan.pt", seed=4, lr=0.01)
    (tmp_path / "gan.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"gan\.pt cannot be read"):
        train(4, tmp_path / "gan.pt")


def test_bad_images_are_refused() -> None:
    with pytest.raises(TypeError, match="must be floats"):
        train_gan(*small(), torch.zeros(8, 1, 28, 28, dtype=torch.uint8), 1)
    with pytest.raises(EnsembleError, match="between 1 and 8"):
        train_gan(*small(), torch.zeros(8, 1, 28, 28), 1, batch=9)


def test_latents() -> None:
    z = latents(2000, 5, seed=1)
    assert z.shape == (2000, 5)
    assert torch.equal(z, latents(2000, 5, seed=1))
    assert not torch.equal(z, latents(2000, 5, seed=2))
    assert abs(float(z.mean())) < 5 / 100  # five standard errors of 10⁴ normals
    assert abs(float(z.var()) - 1) < 5 * 2**0.5 / 100


@torch.no_grad()
def brightness(generator: Generator) -> float:
    return float(generator.eval()(latents(16)).mean())


def test_the_generator_learns_what_the_images_have_in_common() -> None:
    """All images are white, so the generated ones become brighter."""
    generator, discriminator = small()
    before = brightness(generator)
    train_gan(generator, discriminator, torch.full((16, 1, 28, 28), 0.9), 200, batch=16, lr=5e-3)
    assert abs(before) < 0.1
    assert brightness(generator) > 0.2
