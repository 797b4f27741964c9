"""The step's linear map on a quadratic, read off with unit vectors, and the covariance it leaves invariant.

On U = ½kq² one step is linear: x' = Mx + NR with x = (q, p) and R the step's normals. A parameter with one
entry per input holds all experiments at once: entry j gets the j-th unit vector of (q, p, R₁, R₂, …), so one
step returns the columns of M and N. The stationary covariance solves S = MSMᵀ + NNᵀ: the sampler's exact
law at step size h, without a sample.
"""

import warnings

import numpy as np
import torch
from scipy.linalg import solve_discrete_lyapunov

from holonom import Langevin
from tests.injected import drop_idle_draws, inject

MEMORY = {"L": None, "M": "last_noise"}  # what a step remembers besides q; the others: momentum


def covariance(monkeypatch, word, h, k=1.0, friction=1.0, temperature=1.0, synchronize=False, momentum=None):
    """Stationary covariance of q and of what else the state holds: p, nothing (L) or the last normals (M).

    With a ``momentum`` the optimizer is ``like_sgd``'s, and h its lr.

    A step is ``step()``, as in training, or ``step()`` and ``synchronize()`` with a new gradient: the
    textbook's word from its first letter to its last.
    """
    memory = MEMORY.get(word, "momentum")
    states = 2 if memory else 1
    inputs = states + sum(map(word.count, "OLM"))
    q = torch.nn.Parameter(torch.zeros(inputs, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* samples positions at .* the temperature")
        if momentum is None:
            optimizer = Langevin([q], h, scheme=word, friction=friction, temperature=temperature)
        else:
            optimizer = Langevin.like_sgd([q], h, momentum, scheme=word, temperature=temperature)
    keys = []
    drop_idle_draws(monkeypatch)

    def step(noise):
        inject(monkeypatch, noise)
        q.grad = k * q.detach()
        optimizer.step()
        if synchronize:
            q.grad = k * q.detach()
            optimizer.synchronize()

    def silence(shape, dtype, device, *key):
        return torch.zeros(shape, dtype=dtype)

    def unit(shape, dtype, device, *key):
        keys.append(key)
        return torch.eye(inputs, dtype=dtype)[states + len(keys) - 1]

    step(silence)  # from rest to rest; whatever a first step does differently is over
    q.data[0] = 1
    if memory:
        optimizer.state[q][memory][1] = 1
    step(unit)
    assert len(set(keys)) == len(keys) == inputs - states, "every draw of a step has its own key"

    after = np.stack([q.detach().numpy(), *([optimizer.state[q][memory].numpy()] if memory else [])])
    m, n = after[:, :states], after[:, states:]
    assert np.abs(np.linalg.eigvals(m)).max() < 1, "the step is unstable"
    return solve_discrete_lyapunov(m, n @ n.T)
