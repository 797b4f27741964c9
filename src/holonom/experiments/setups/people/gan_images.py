"""Images between digits (thesis 6.2.2): a DCGAN's pictures on lines from one digit's latent vector to another's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ....ensemble import Ensemble
from ....gan import latents, train_gan
from ....models import Discriminator, Generator, latent_line
from ...run import Run
from ..perceptrons.tasks import PIXEL_DEVIATION, PIXEL_MEAN
from .classifiers import Digits, normalised, parts, probabilities

POINTS = 11
# Each digit in three pairs: with its neighbours among the even or the odd digits, and with the one five away.
PAIRS = tuple(sorted({tuple(sorted((i, (i + d) % 10))) for i in range(10) for d in (2, 5)}))


def players(run: Run, settings: SimpleNamespace) -> tuple[Generator, Discriminator]:
    """Untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        made = Generator(width=settings.gan_width, depth=settings.gan_depth)
        judge = Discriminator(width=settings.gan_width, depth=settings.gan_depth)
    return made.to(run.device), judge.to(run.device)


def generator(run: Run, settings: SimpleNamespace, digits: Digits, checkpoint: Path) -> dict[str, Tensor]:
    """The state of a DCGAN's generator that has learnt to make digits."""
    made, judge = players(run, settings)
    real = 2 * (digits.x * PIXEL_DEVIATION + PIXEL_MEAN) - 1
    batch = min(settings.gan_batch, len(real))
    with run.progress("DCGAN", settings.gan_steps) as progress:
        train_gan(
            made, judge, real, settings.gan_steps, batch=batch, lr=settings.gan_lr, seed=run.seed,
            checkpoint=checkpoint, progress=lambda done, steps: progress(done, steps, None),
        )  # fmt: skip
    checkpoint.unlink(missing_ok=True)  # another experiment of the run set may have finished first
    return made.state_dict()


@torch.no_grad()
def pictures(made: Generator, z: Tensor) -> Tensor:
    """(N, 28, 28) bytes, as they would be stored and shown."""
    made.eval()
    images = torch.cat([made(part) for part in parts(z)])[:, 0]
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def as_input(images: Tensor) -> Tensor:
    """(N, 28, 28) bytes as networks see them."""
    return normalised(images[:, None].float() / 255)


def between(
    run: Run, settings: SimpleNamespace, digits: Digits, state: dict[str, Tensor], judges: Ensemble
) -> dict[str, Tensor]:
    """``images`` (15·11, 28, 28) of all pairs in order, the ten ``latents`` and the judges' ``certainty`` of each."""
    made, _ = players(run, settings)
    made.load_state_dict(state)
    z = latents(settings.candidates, seed=run.seed, device=run.device)
    candidates = as_input(pictures(made, z))
    votes = probabilities(judges, candidates)
    chosen = torch.stack([choose(digit, candidates, votes, digits) for digit in range(10)])
    ends = z[chosen]
    lines = torch.cat([latent_line(ends[i], ends[j], POINTS) for i, j in PAIRS])
    certainty = votes.mean(0)[chosen].diagonal()
    return {"images": pictures(made, lines).cpu(), "latents": ends.cpu(), "certainty": certainty.cpu()}


def choose(digit: int, candidates: Tensor, votes: Tensor, digits: Digits) -> Tensor:
    """Number of the picture that shows a digit best, as one would choose by eye.

    Of those that all judges take for the digit, the one that is nearest to a real one of it; if there are none, that
    which the judges find most probable. (The most certain picture of all need not look like a digit.)
    """
    found = (votes.argmax(-1) == digit).all(0).nonzero()[:, 0]
    real = digits.x[digits.y == digit].flatten(1)
    if not len(found) or not len(real):
        return votes.mean(0)[:, digit].argmax()
    distances = torch.cdist(candidates[found].flatten(1), real).amin(1)
    return found[distances.argmin()]
