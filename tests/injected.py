"""Noise as an injected argument: tests give the library its normals, or list the keys it draws with."""

import torch

from holonom._random import philox
from holonom._step import run

DRAW = philox.Layout.draw


def inject(monkeypatch, source):
    """Let ``source(shape, dtype, device, seed, step, draw, parameter, part)`` give every tensor of normals."""

    def draw(self, seeds, step, number, fill=None):
        device, seed = self.tiles.device, int(seeds) if seeds.ndim == 0 else seeds
        return [
            source(
                torch.Size((*seeds.shape, *shape)), torch.float64, device, seed, int(step), number, *divmod(stream, 2)
            )
            for shape, stream in zip(self.shapes, self.numbers, strict=True)
        ]

    monkeypatch.setattr(philox.Layout, "draw", draw)


def drop_idle_draws(monkeypatch):
    """Draw nothing for a letter that acts for no time: it would multiply its normals by 0, and a textbook has none."""
    make_ready = run.make_ready

    def ready(*args):
        return [
            op if op.draw is None or bool(torch.as_tensor(op.numbers[1]).any()) else op._replace(draw=None)
            for op in make_ready(*args)
        ]

    monkeypatch.setattr(run, "make_ready", ready)


def normal(shape, dtype, device, seed, step, draw, parameter=0, part=0):
    """The library's own normals for one tensor."""
    layout = philox.Layout([torch.Size(shape)], [2 * parameter + part], device)
    return DRAW(layout, philox.as_seed(seed, device), torch.tensor(step), draw)[0].to(dtype)
