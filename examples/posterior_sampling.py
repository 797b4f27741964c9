"""Sample a Bayesian network's posterior and see its uncertainty grow away from the data.

The loss is a mean over the data, so the posterior's temperature is 1/num_data, and a Gaussian prior
is a weight decay. Sixteen chains run at once, stacked along the first dimension.
"""

import torch
from torch import nn

import holonom

CHAINS, HIDDEN, POINTS, NOISE = 16, 10, 40, 0.4

if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.linspace(-2, -0.7, POINTS // 2), torch.linspace(0.5, 2, POINTS // 2)])
    y = torch.sin(2 * x) + NOISE * torch.randn(POINTS, generator=generator)

    shapes = [(1, HIDDEN), (1, HIDDEN), (HIDDEN, 1), (1, 1)]
    parameters = [nn.Parameter(torch.randn(CHAINS, *shape, generator=generator)) for shape in shapes]

    def predict(points: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = parameters
        return (torch.tanh(points[None, :, None] @ w1 + b1) @ w2 + b2)[..., 0]

    optimizer = holonom.Langevin(
        parameters,
        lr=0.1,
        friction=0.3,
        temperature=holonom.posterior_temperature(POINTS),
        weight_decay=holonom.prior_weight_decay(POINTS, std=1.0),
        seed=0,
    )
    recorder = holonom.Recorder(every=10, warmup=1000, chains=CHAINS)
    where = torch.tensor([-4.0, -1.5, 0.0, 1.5, 4.0])
    for _ in range(4000):
        loss = ((predict(x) - y) ** 2 / (2 * NOISE**2)).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder(prediction=predict(where))

    print(recorder.verdict(rhat=1.05))
    draws = recorder.draws("prediction").reshape(-1, len(where))
    for place, mean, std in zip(where.tolist(), draws.mean(0), draws.std(0)):
        print(f"f({place:+.1f}) = {mean:+.2f} ± {std:.2f}")
