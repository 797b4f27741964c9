"""Theorem 5.3.3 on a problem whose constants are known: multirate SGD stays below its bound."""

import pytest
import torch

from holonom.multirate import Multirate, convergence_bound

SAMPLES, SLOW, FAST, RUNS, STEPS = 20, 3, 2, 64, 600


def problem():
    """f = mean over x of √(1 + (aᵀθ − b)²) − 1 with b = aᵀθ*: its minimum is 0, its gradients are bounded.

    r ↦ √(1 + r²) has slope and curvature of at most 1, so ‖∇f_x‖² ≤ ‖a‖² and L = λ_max(mean aaᵀ).
    """
    generator = torch.Generator().manual_seed(5)
    a = 0.4 + torch.randn(SAMPLES, SLOW + FAST, generator=generator, dtype=torch.float64) / 5
    solution = torch.randn(SLOW + FAST, generator=generator, dtype=torch.float64)
    smoothness = torch.linalg.eigvalsh(a.T @ a / SAMPLES)[-1].item()
    second_moment = a.square().sum(1).max().item()
    return a, a @ solution, smoothness, second_moment


def losses(theta, a, b):
    """One value per run and sample."""
    return (1 + (theta @ a.T - b).square()).sqrt() - 1


@pytest.mark.parametrize(("every", "lr"), [(1, 0.05), (5, 0.05), (5, 0.02), (10, 0.02)])
def test_the_mean_squared_gradient_is_below_the_bound(every, lr):
    a, b, smoothness, second_moment = problem()
    start = torch.ones(SLOW + FAST, dtype=torch.float64)
    slow, fast = (torch.nn.Parameter(part.repeat(RUNS, 1)) for part in start.split([SLOW, FAST]))
    opt = Multirate([{"params": [slow], "every": every}, {"params": [fast]}], lr, momentum=0.0)
    generator = torch.Generator().manual_seed(0)
    norms = []
    for _ in range(STEPS):
        theta = torch.cat([slow, fast], 1).detach().requires_grad_()
        losses(theta, a, b).mean(1).sum().backward()
        norms.append(theta.grad.square().sum(1).mean().item())
        sample = torch.randint(SAMPLES, (RUNS,), generator=generator)
        with opt.due():
            residual = (torch.cat([slow, fast], 1) * a[sample]).sum(1) - b[sample]
            (1 + residual.square()).sqrt().sum().backward()
        opt.step()
    gap = losses(start, a, b).mean().item()
    bound = convergence_bound(gap, lr, STEPS, smoothness, second_moment, every)
    assert bound < norms[0]  # standing still would break it
    assert sum(norms) / STEPS < bound


def test_the_bound_is_the_theorem_s():
    """(5.5) by hand: 2·3/(0.1·100) + 0.1·2·5·4·(0.1·2·9/3 + 1)."""
    assert convergence_bound(3.0, 0.1, 100, 2.0, 5.0, 3, layers=4) == pytest.approx(0.6 + 4 * 1.6)
