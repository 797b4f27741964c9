"""One loss read twice, by torch with autograd and by the oracle: anharmonic, coupling its parts, changing with time."""

import numpy as np
import torch

SIZES = (3, 2, 4)
QUARTIC, PLANE, WIND = (np.cos(np.arange(9.0) + shift) for shift in (0.0, 2.0, 5.0))


def start():
    """θ from the slowest part to the fastest."""
    return np.split(np.sin(1 + np.arange(9.0)) / 2, np.cumsum(SIZES)[:-1])


def gradient(theta, batch):
    """∇ of Σ(2 + w)θ⁴/4 + ½(vθ)² + sin(t + 1)·uθ, part by part."""
    x = np.concatenate(theta)
    slope = (2 + QUARTIC) * x**3 + PLANE * (PLANE @ x) + np.sin(batch + 1.0) * WIND
    return np.split(slope, np.cumsum([len(part) for part in theta])[:-1])


def loss(params, batch):
    x = torch.cat(params)
    quartic, plane, wind = map(torch.from_numpy, (2 + QUARTIC, PLANE, WIND))
    return (quartic * x**4).sum() / 4 + (plane @ x) ** 2 / 2 + np.sin(batch + 1.0) * (wind @ x)


def parameters():
    return [torch.nn.Parameter(torch.tensor(part)) for part in start()]


def values(params):
    return [p.detach().numpy().copy() for p in params]


def train(opt, params, steps, first=0):
    """The loop of the README; yields θ after every step."""
    for batch in range(first, first + steps):
        with opt.due():
            loss(params, batch).backward()
        opt.step()
        yield values(params)


def train_by_closure(opt, params, steps):
    for batch in range(steps):

        def closure(batch=batch):
            opt.zero_grad()
            value = loss(params, batch)
            value.backward()
            return value

        opt.step(closure)
        yield values(params)


def agree(actual, expected, tolerance=1e-12):
    """Step by step, part by part."""
    for number, (found, wanted) in enumerate(zip(actual, expected, strict=True)):
        for part, (x, y) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance, err_msg=f"step {number}, part {part}")
