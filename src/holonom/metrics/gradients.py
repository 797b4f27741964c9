"""Norms of the loss's gradient, layer by layer: whether gradients vanish or explode (paper section 3, appendix C)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ensemble import Ensemble
from ..partitions import Place, locate, weights


@dataclass(frozen=True)
class GradientNorms:
    """Norms of ∇L for each layer, (L,), or (R, L) for an ensemble; float64.

    Attributes:
        layers: names of the modules that own a weight, in the model's order.
        weights: ‖∂L/∂W^ℓ‖, Frobenius; NaN for a frozen weight.
        signals: ‖∂L/∂z^ℓ‖, where z^ℓ is what layer ℓ hands on: what back-propagation carries from layer to layer. The
            norm is that of the whole batch, and of all calls of a layer. NaN where a module was not called, or does
            not return a floating tensor.
    """

    layers: tuple[str, ...]
    weights: Tensor
    signals: Tensor

    def growth(self, first: int = 0, last: int = -1) -> Tensor:
        """By what factor the signal grows per layer on its way back from layer ``last`` to layer ``first``.

        (‖∂L/∂z^first‖ / ‖∂L/∂z^last‖)^(1/(last − first)): below 1 gradients vanish with depth, above 1 they explode. A
        layer z^(ℓ+1) = W φ(z^ℓ) with orthogonal W and ReLU or tanh keeps it at most 1; without φ it is 1.
        """
        count = len(self.layers)
        low, high = (range(count)[index] for index in (first, last))
        if low >= high:
            raise ValueError(f"first must lie before last among {count} layers, got {first} and {last}")
        ratio: Tensor = self.signals[..., low] / self.signals[..., high]
        return ratio ** (1 / (high - low))


def gradient_norms(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, *targets: Any) -> GradientNorms:
    """Norms of the gradient of ``loss(model(inputs), *targets)`` by layer, for a model or each replica of an ensemble.

    Every replica gets the same batch; give a replica its own through :meth:`holonom.Ensemble.alone`. The model is in
    evaluation mode meanwhile, and its ``.grad`` is not touched. A tuple of inputs is given as several arguments.

    >>> norms = gradient_norms(model, F.cross_entropy, x, y)
    >>> norms.growth()  # 0.4: each layer that the gradient passes leaves 40 % of it
    """
    if not isinstance(model, Ensemble):
        return _of_one(model, loss, inputs, targets)
    each = [_of_one(model.alone(replica), loss, inputs, targets) for replica in range(model.replicas)]
    signals, of_weights = (torch.stack([getattr(one, name) for one in each]) for name in ("signals", "weights"))
    return GradientNorms(each[0].layers, of_weights, signals)


def _of_one(model: nn.Module, loss: Callable[..., Tensor], inputs: Any, targets: tuple[Any, ...]) -> GradientNorms:
    layers = _layers(model)
    with _evaluating(model), _probes(list(layers.values())) as probes, torch.enable_grad():
        value = loss(model(*inputs) if isinstance(inputs, tuple) else model(inputs), *targets)
        if value.numel() != 1:
            raise ValueError(f"the loss must be one number, got shape {tuple(value.shape)}: use reduction='mean'")
        owned: list[list[Tensor]] = [
            [place.parameter for place in places if place.parameter.requires_grad] for places in layers.values()
        ]
        groups = [*owned, *probes]
        flat = [x for group in groups for x in group]
        found = iter(torch.autograd.grad(value, flat, materialize_grads=True))
        norms = torch.stack([_norm([next(found) for _ in group], value) for group in groups]).cpu()
    return GradientNorms(tuple(layers), norms[: len(layers)], norms[len(layers) :])


def _layers(model: nn.Module) -> dict[str, list[Place]]:
    """The weights of every module that owns some, by its name."""
    layers: dict[str, list[Place]] = {}
    for place in locate(model):
        if weights(place):
            layers.setdefault(place.name.rpartition(".")[0], []).append(place)
    if not layers:
        raise ValueError("the model has no layer with a weight of two or more dimensions")
    return layers


@contextmanager
def _probes(layers: list[list[Place]]) -> Iterator[list[list[Tensor]]]:
    """Zeros added to what each layer returns; their gradients are those of the outputs, whatever later happens to them.

    A gradient of the output itself would be that of what an activation in place made of it.
    """
    probes: list[list[Tensor]] = [[] for _ in layers]

    def hook_for(found: list[Tensor]) -> Callable[[nn.Module, Any, Any], Any]:
        def add_zeros(module: nn.Module, inputs: Any, output: Any) -> Any:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return None
            found.append(torch.zeros_like(output, requires_grad=True))
            return output + found[-1]

        return add_zeros

    handles = [
        places[0].module.register_forward_hook(hook_for(found)) for places, found in zip(layers, probes, strict=True)
    ]
    try:
        yield probes
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _norm(gradients: list[Tensor], like: Tensor) -> Tensor:
    """Of all of them together; NaN of none."""
    if not gradients:
        return torch.full((), torch.nan, dtype=torch.float64, device=like.device)
    dense = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return torch.stack([g.detach().double().square().sum().to(like.device) for g in dense]).sum().sqrt()
