"""Images between digits (thesis 6.2.2): a DCGAN's images on lines from one digit's latent vector to another's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ....ensemble import Ensemble
from ....gan import latents, train_gan
from ....models import Discriminator, Generator, latent_line
from ...run import Run
from ..shared.mnist import PIXEL_DEVIATION, PIXEL_MEAN, normalised
from .classifiers import Digits, chunks, probabilities

POINTS = 11
# Each digit in three pairs: with its neighbours among the even or the odd digits, and with the one five away.
PAIRS = tuple(sorted({tuple(sorted((i, (i + d) % 10))) for i in range(10) for d in (2, 5)}))


def untrained_gan(run: Run, settings: SimpleNamespace) -> tuple[Generator, Discriminator]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        generator = Generator(width=settings.gan_width, depth=settings.gan_depth)
        discriminator = Discriminator(width=settings.gan_width, depth=settings.gan_depth)
    return generator.to(run.device), discriminator.to(run.device)


def train_generator(run: Run, settings: SimpleNamespace, digits: Digits, checkpoint: Path) -> dict[str, Tensor]:
    """The state of a DCGAN's generator of digits."""
    generator, discriminator = untrained_gan(run, settings)
    real = 2 * (digits.x * PIXEL_DEVIATION + PIXEL_MEAN) - 1
    batch = min(settings.gan_batch, len(real))
    with run.progress("DCGAN", settings.gan_steps) as progress:
        train_gan(
            generator, discriminator, real, settings.gan_steps, batch=batch, lr=settings.gan_lr, seed=run.seed,
            checkpoint=checkpoint, progress=lambda done, steps: progress(done, steps, None),
        )  # fmt: skip
    checkpoint.unlink(missing_ok=True)  # another experiment of the run set may have finished first
    return generator.state_dict()


@torch.no_grad()
def render(generator: Generator, z: Tensor) -> Tensor:
    """(N, 28, 28) bytes, as they are stored and shown."""
    generator.eval()
    images = torch.cat([generator(part) for part in chunks(z)])[:, 0]
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def as_input(images: Tensor) -> Tensor:
    """(N, 28, 28) bytes as networks see them."""
    return normalised(images[:, None].float() / 255)


def images_between(
    run: Run, settings: SimpleNamespace, digits: Digits, state: dict[str, Tensor], committee: Ensemble
) -> dict[str, Tensor]:
    """``images`` (15·11, 28, 28) of all pairs in order, the ten ``latents``, and the ``certainty`` of their images."""
    generator, _ = untrained_gan(run, settings)
    generator.load_state_dict(state)
    z = latents(settings.candidates, seed=run.seed, device=run.device)
    candidates = as_input(render(generator, z))
    votes = probabilities(committee, candidates)
    chosen = torch.stack([choose(digit, candidates, votes, digits) for digit in range(10)])
    ends = z[chosen]
    lines = torch.cat([latent_line(ends[i], ends[j], POINTS) for i, j in PAIRS])
    certainty = votes.mean(0)[chosen].diagonal()
    return {"images": render(generator, lines).cpu(), "latents": ends.cpu(), "certainty": certainty.cpu()}


def choose(digit: int, candidates: Tensor, votes: Tensor, digits: Digits) -> Tensor:
    """Index of the image that shows a digit best, in place of a choice by eye.

    Of those that the whole committee classifies as the digit, the one nearest to a real image of it; if there are none,
    the most probable one. (The most probable image of all need not look like a digit.)
    """
    found = (votes.argmax(-1) == digit).all(0).nonzero()[:, 0]
    real = digits.x[digits.y == digit].flatten(1)
    if not len(found) or not len(real):
        return votes.mean(0)[:, digit].argmax()
    distances = torch.cdist(candidates[found].flatten(1), real).amin(1)
    return found[distances.argmin()]
