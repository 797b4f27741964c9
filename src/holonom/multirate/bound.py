"""How close multirate SGD comes to a critical point: the bound of thesis Theorem 5.3.3."""

from __future__ import annotations


def convergence_bound(
    gap: float, lr: float, steps: int, smoothness: float, second_moment: float, every: int, layers: int = 2
) -> float:
    r"""Bound on the mean squared gradient norm along a run of multirate SGD without momentum (5.5):

    .. math:: \frac{1}{T} \sum_{t<T} E\,‖∇f(θ^t)‖^2 ≤ \frac{2\,(f(θ^0) - f^*)}{hT} + hLMℓ \Big(\frac{hLk^2}{3} + 1\Big).

    Args:
        gap: f(θ⁰) − f*.
        lr: h, by which every parameter moves at every step.
        steps: T, a multiple of ``every``.
        smoothness: L, a Lipschitz constant of ∇f.
        second_moment: M ≥ ‖∇f_x(θ)‖² for every sample x and every θ.
        every: k.
        layers: ℓ, the number of parts whose gradients are added.
    """
    drift_error = lr * smoothness * every**2 / 3
    return 2 * gap / (lr * steps) + lr * smoothness * second_moment * layers * (drift_error + 1)
