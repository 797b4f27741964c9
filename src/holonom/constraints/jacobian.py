"""Jacobians G of a user's function, block by block, and the equations with GGᵀ that a projection solves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def linearised(c: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """c(x): (B, m) and its Jacobian (B, m, d) at x: (B, d), where no block's c depends on another block.

    One backward pass takes the whole batch; a transform of every block (``jacrev``) takes twice as long.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.clone().requires_grad_()
        value = c(leaf)
        return value.detach(), _rows(value, leaf)


def _rows(value: Tensor, x: Tensor) -> Tensor:
    """∂cᵢ/∂x for every constraint i."""
    blocks, m = value.shape
    if not value.requires_grad:  # a constant: landing will say that it constrains nothing
        return x.new_zeros(blocks, m, x.shape[1])
    if m == 1:
        return torch.autograd.grad(value, x, torch.ones_like(value))[0][:, None]
    each = torch.eye(m, dtype=value.dtype, device=value.device)[:, None, :].expand(m, blocks, m)
    return torch.autograd.grad(value, x, each, is_grads_batched=True)[0].transpose(0, 1)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹b; on a device without asking whether a was singular, which would stall it."""
    solution: Tensor = torch.linalg.solve_ex(a, b)[0] if a.is_cuda else torch.linalg.solve(a, b)
    return solution


def tangent(j: Tensor, pi: Tensor) -> Tensor:
    """Ππ with Π = I − Gᵀ(GGᵀ)⁻¹G, row by row."""
    normal: Tensor = j.mT @ solve(j @ j.mT, j @ pi[:, :, None])
    return pi - normal[:, :, 0]


def are_dependent(j: Tensor) -> bool:
    """Whether the rows of some block's Jacobian are, to rounding."""
    singular = torch.linalg.svdvals(j.double())
    rounding = max(1e-8, 8 * torch.finfo(j.dtype).eps)
    return bool((singular[:, -1] <= rounding * singular[:, 0].clamp_min(1e-30)).any())
