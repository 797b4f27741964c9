"""Many independent chains in one tensor, their averages, and what counts as agreement.

A tensor whose leading dimension is a batch of blocks holds one chain per block: each block has its own
noise and feels its own force, so the chains are independent. The average of an observable over the steps
of a chain is one number per chain, and the spread of those numbers over the chains gives the standard
error of the grand mean directly, whatever the autocorrelation inside a chain. No effective sample size has
to be estimated: n chains are n independent draws of a chain average.

Agreement means a distance of at most five standard errors (chance 6e-7 for a correct sampler, and the
seeds are fixed) plus a stated discretisation bias, zero where the method is exact at any step size.
A test without power would agree with anything, so the five standard errors must themselves stay below a
stated resolution.
"""

import torch

from holonom import Langevin

SIGMAS = 5


def average(start, gradient, observe, *, steps, burn, every=1, **options):
    """Per-chain time averages of ``observe(q, state)``, shape (chains, observables), and the final positions.

    ``gradient(q)`` is ∇U, written into ``grad`` by hand; the first ``burn`` steps are not looked at.
    """
    q = torch.nn.Parameter(start.clone())
    optimizer = Langevin([q], **options)
    total, count = 0.0, 0
    for n in range(burn + steps):
        q.grad = gradient(q.detach())
        optimizer.step()
        if n >= burn and n % every == 0:
            total, count = total + observe(q.detach(), optimizer.state[q]), count + 1
    return total / count, q.detach()


def assert_agree(averages, expected, *, resolution, bias=0.0):
    """The grand mean of every observable is its expectation within 5 standard errors and a known bias."""
    expected = torch.as_tensor(expected, dtype=averages.dtype)
    assert averages.ndim == 2
    assert averages.shape[1:] == expected.shape
    mean, error = averages.mean(0), SIGMAS * averages.std(0) / len(averages) ** 0.5
    table = f"mean {mean.tolist()}\nwant {expected.tolist()}\n5 standard errors {error.tolist()}, bias {bias}"
    assert (error <= resolution).all(), f"the chains are too short to tell\n{table}"
    assert ((mean - expected).abs() <= error + bias).all(), table
