"""Matrix-free curvature of the loss: top eigenvalues and trace of its Hessian, per group of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..landscape.evaluation import Evaluation, Function, as_evaluation
from ..landscape.states import Blocks, blocks_of


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean and its standard error."""

    value: float
    error: float


class Hessian:
    """Products H v of the loss's Hessian, for all parameters or a group of them.

    One product costs about two gradients and is exact: ∇(∇L · v) by differentiating twice. The model
    is in evaluation mode while it is used, and its ``.grad`` is never touched.

    >>> hessian = Hessian(model, over(loader, F.cross_entropy))
    >>> hessian.eigenvalues(3)
    >>> {name: part.trace() for name, part in hessian.groups("auto").items()}

    Args:
        model: the network.
        loss: :func:`holonom.landscape.over` (data, loss), or a function of the model that returns the loss.
        names: of the parameters to differentiate by; all others are constants.
    """

    def __init__(
        self, model: nn.Module, loss: Evaluation | Function | Callable[[Any], Any], names: list[str] | None = None
    ) -> None:
        available = dict(model.named_parameters())
        wrong = [name for name in names or [] if name not in available]
        if wrong:
            raise ValueError(f"{', '.join(wrong[:4])}: not a parameter of the model")
        self.model = model
        self.names = list(available) if names is None else names
        self.parameters = [available[name] for name in self.names]
        if not self.parameters or not all(p.requires_grad for p in self.parameters):
            raise ValueError("a Hessian needs at least one parameter, and all of them must require gradients")
        self.loss = as_evaluation(loss)
        self.size = sum(p.numel() for p in self.parameters)

    def groups(self, blocks: Blocks = "auto") -> dict[str, Hessian]:
        """The diagonal blocks that belong to groups of parameters, named as by :func:`holonom.landscape.blocks_of`."""
        selected = set(self.names)
        named = {label: [n for n in names if n in selected] for label, names in blocks_of(self.model, blocks).items()}
        return {label: Hessian(self.model, self.loss, names) for label, names in named.items() if names}

    def product(self, vectors: Tensor) -> Tensor:
        """H V for rows V of shape (size,) or (k, size), in the parameters' order."""
        rows = vectors if vectors.ndim == 2 else vectors[None]
        if rows.shape[-1] != self.size:
            raise ValueError(f"vectors have {rows.shape[-1]} entries, the parameters {self.size}")
        total = torch.zeros_like(rows)
        examples = 0
        with self._evaluating(), torch.enable_grad():
            for batch in self.loss.batches(self.parameters[0].device):
                size = self.loss.size(batch)
                value = next(iter(self.loss.measure(self.model, batch).values()))
                total += size * self._rows(value, rows)
                examples += size
        return (total / examples).reshape(vectors.shape)

    def _rows(self, loss: Tensor, rows: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, self.parameters, create_graph=True, materialize_grads=True)
        flat = torch.cat([g.flatten() for g in gradients])
        if not flat.requires_grad:  # a loss linear in these parameters
            return torch.zeros_like(rows)
        return torch.stack([self._row(flat, row, more=i + 1 < len(rows)) for i, row in enumerate(rows)])

    def _row(self, flat: Tensor, row: Tensor, more: bool) -> Tensor:
        parts = torch.autograd.grad(flat @ row, self.parameters, retain_graph=more, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts]).detach()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    def eigenvalues(
        self, count: int = 1, *, which: str = "largest", steps: int = 100, tolerance: float = 1e-4, seed: int = 0
    ) -> Tensor:
        """The ``count`` extreme eigenvalues by Lanczos with full reorthogonalisation, most extreme first.

        One start vector cannot see the multiplicity of an eigenvalue: equal eigenvalues are found once.

        Args:
            which: "largest", "smallest" (most negative), or "magnitude".
            steps: maximal number of products; ``steps`` × size numbers are stored.
            tolerance: stop once the residual ‖Hv − λv‖ of each is below this share of the largest |λ|.
        """
        orders: dict[str, Callable[[Tensor], Tensor]] = {
            "largest": lambda x: -x, "smallest": lambda x: x, "magnitude": lambda x: -x.abs(),
        }  # fmt: skip
        if which not in orders:
            raise ValueError(f"which must be one of {', '.join(orders)}, got {which!r}")
        if not 1 <= count <= self.size:
            raise ValueError(f"there are {self.size} eigenvalues, so not {count}")
        values: Tensor = torch.empty(0)
        for values, residuals in self._lanczos(max(steps, count), seed):
            chosen = orders[which](values).argsort()[:count]
            if len(values) >= count and float(residuals[chosen].max()) <= tolerance * float(values.abs().max()):
                break
        return values[orders[which](values).argsort()[:count]]

    def _lanczos(self, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Ritz values and their residuals after every product, float64 on the CPU."""
        like = self.parameters[0]
        q = self._noise(seed).to(like)
        basis = [q / q.norm()]
        diagonal: list[float] = []
        beside: list[float] = []
        while True:
            w = self.product(basis[-1])
            diagonal.append(float(w @ basis[-1]))
            for _ in range(2):  # once is not enough in finite precision
                rows = torch.stack(basis)
                w = w - rows.mT @ (rows @ w)
            norm = float(w.norm())
            t = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
            if beside:
                off = torch.tensor(beside, dtype=torch.float64)
                t = t + torch.diag(off, 1) + torch.diag(off, -1)
            values, vectors = torch.linalg.eigh(t)
            yield values, norm * vectors[-1].abs()
            scale = float(values.abs().max())
            if len(basis) >= min(steps, self.size) or norm <= 10 * torch.finfo(like.dtype).eps * max(scale, 1e-30):
                return
            beside.append(norm)
            basis.append(w / norm)

    def trace(self, samples: int = 32, seed: int = 0, at_once: int = 8) -> Estimate:
        """tr H by Hutchinson's estimator, the mean of vᵀHv over random signs v; exact for a diagonal Hessian.

        Args:
            at_once: probes that share one forward and one gradient.
        """
        if samples < 2 or at_once < 1:
            raise ValueError(f"an error bar needs at least 2 samples, and at_once at least 1; got {samples}, {at_once}")
        like = self.parameters[0]
        generator = torch.Generator().manual_seed(seed)
        signs = 2.0 * torch.randint(2, (samples, self.size), generator=generator) - 1
        found = [(rows * self.product(rows)).sum(1).double().cpu() for rows in torch.split(signs.to(like), at_once)]
        each = torch.cat(found)
        return Estimate(float(each.mean()), float(each.std() / samples**0.5))

    def _noise(self, seed: int) -> Tensor:
        return torch.randn(self.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
