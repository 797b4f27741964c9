"""Sample a Bayesian network's posterior and see its uncertainty grow away from the data.

`sample` takes the mean negative log-likelihood, runs all chains as one program, and chooses the time step during the
burn-in. Units of a network may be swapped, so its outputs say whether the chains have mixed, not its weights.
"""

import torch
from torch import nn

from holonom import sampling

POINTS, NOISE = 40, 0.4


def negative_log_likelihood(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean() / (2 * NOISE**2)


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-2, -0.7, POINTS // 2), torch.linspace(0.5, 2, POINTS // 2)])[:, None]
    y = torch.sin(2 * x) + NOISE * torch.randn(POINTS, 1, generator=generator)

    model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1))
    posterior = sampling.sample(model, negative_log_likelihood, (x, y), steps=5000, burn_in=1000, chains=16, seed=0)

    where = torch.tensor([-4.0, -1.5, 0.0, 1.5, 4.0])[:, None]
    print(repr(posterior))
    print(posterior.verdict(where, rhat=1.05))
    prediction = posterior.predict(where)
    for place, mean, variance in zip(where[:, 0].tolist(), prediction.mean[:, 0], prediction.variance[:, 0]):
        print(f"f({place:+.1f}) = {mean:+.2f} ± {variance.sqrt():.2f}")
