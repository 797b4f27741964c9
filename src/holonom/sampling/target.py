"""The potential that is sampled, its gradient, and the batch of every step."""

from __future__ import annotations

import torch
from torch import Tensor

from .._random.philox import uniforms
from ..ensemble import Loss
from .chains import Chains, Named
from .inputs import Inputs, rows
from .prior import Prior

_BATCHES, _MEASURING = 0xBA7C, 0xBA7D  # streams of uniforms


class Target:
    """L(q) = mean negative log-likelihood − log prior/num_data of every chain.

    At the temperature τ = 1/num_data the law exp(−L/τ) is the posterior, exp(−num_data · NLL) × prior. Scaled so, the
    curvature of L does not grow with the data, and a time step means what it means to :class:`holonom.Langevin`.
    """

    def __init__(
        self,
        chains: Chains,
        loss: Loss,
        data: tuple[Inputs, Tensor],
        num_data: float,
        prior: Prior,
        batch_size: int | None,
    ) -> None:
        self.chains, self.loss, self.data = chains, loss, data
        self.num_data, self.prior = num_data, prior
        self.batch_size = None if batch_size == len(data[1]) else batch_size

    @property
    def temperature(self) -> float:
        return 1.0 / self.num_data

    def batch(self, step: int, measuring: bool = False) -> tuple[Inputs, Tensor]:
        """All data, or examples that every chain draws by itself; with ``measuring`` others, which no step uses.

        Every step draws anew, with replacement: batches of a shuffled epoch have noise that sums to zero over it, so
        that it heats momenta and not positions, and a thermostat that removes the one cools the other.
        """
        if self.batch_size is None:
            return self.data
        seeds, (x, y) = self.chains.seeds, self.data
        at = torch.full((), step, device=seeds.device)
        index = (uniforms(self.batch_size, seeds, at, _MEASURING if measuring else _BATCHES) * len(y)).long()
        return rows(x, index), y[index]

    def gradients(self, batch: tuple[Inputs, Tensor], prior: bool = True) -> tuple[Named, Tensor]:
        """∇L of every chain, and the (R,) mean negative log-likelihoods, without the prior."""
        found, losses = self.chains.gradients(self.loss, batch[0], batch[1], shared=self.batch_size is None)
        gradients = {name: g.detach() for name, g in found.items()}
        if prior:
            self.prior.add_gradient_(self.chains, gradients, self.temperature)
        return gradients, losses.detach()

    def potential(self, losses: Tensor) -> Tensor:
        """(R,) values of L in double precision, from the losses at the present positions."""
        return losses.double() - self.prior.log_density(self.chains) * self.temperature


def per_chain(x: Tensor) -> Tensor:
    """(R, …) as (R, numbers)."""
    return x.reshape(len(x), -1)


def squares(tensors: list[Tensor]) -> Tensor:
    """(R,) sums of squares, in double precision."""
    return torch.stack([per_chain(x).double().square().sum(1) for x in tensors]).sum(0)
