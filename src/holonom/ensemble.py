"""Ensemble: R replicas of a model as one batched module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from ._random import mix
from ._random.seeds import fresh_seed, refuse_ranks
from .errors import EnsembleError

Loss = Callable[..., Tensor]


class Ensemble(nn.Module):
    """R independently initialised copies of a model, their parameters stacked to (R, …).

    Parameters and buffers keep the model's names, so ``dict(ensemble.named_parameters())`` reads like
    the model's with one more dimension in front. A loss summed over replicas has per-replica
    gradients, so any optimizer trains all copies at once; :class:`holonom.Langevin` given
    ``seed=ensemble.seeds`` also draws every replica its own noise, keeps one thermostat each, and takes
    hyperparameters of shape (R,). Replica i is then the run that ``ensemble.alone(i)`` would be with
    ``seed=ensemble.seeds[i]`` and the same batches, to rounding.

        >>> ensemble = holonom.Ensemble(lambda: mlp([2, 500, 1]), replicas=100)
        >>> optimizer = holonom.Langevin(ensemble.parameters(), 0.1, temperature=1e-4, seed=ensemble.seeds)
        >>> ensemble.losses(loss_fn, x, y).sum().backward()

    Args:
        make_model: builds one model; called once per replica under that replica's seed.
        replicas: R.
        seed: of the whole ensemble; replica i gets its own, derived from it and i (:attr:`seeds`). None draws one
            number from torch's CPU generator; a run that is to be resumed in another process gives one.
        repeats: stack the R replicas this many times over, for a grid of hyperparameters in one program: member
            g·R + i is replica i under the grid's value g (see :meth:`spread`).
        first: number of the first replica, for an ensemble that is a part of a larger one.
    """

    batch_dims = 1

    seed_given = True
    """Whether the seed was given, or drawn."""
    _seeds: Tensor

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        replicas: int,
        seed: int | None = None,
        *,
        repeats: int = 1,
        first: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("replicas", replicas), ("repeats", repeats)):
            if not isinstance(value, int) or value < 1:
                raise EnsembleError(f"{name} must be a whole number of at least 1, got {value!r}")
        if seed is None:
            refuse_ranks("Ensemble")
        self.seed_given = seed is not None
        number = fresh_seed() if seed is None else seed
        numbers = [mix(number, first + i) >> 1 for i in range(replicas)]
        self._make_model = make_model
        models = [self._make(number) for number in numbers]
        _check_alike(models)
        _check_mappable(models[0])
        self._adopt(models * repeats)
        self.register_buffer("_seeds", torch.tensor(numbers * repeats), persistent=False)
        self.replicas = replicas * repeats
        self.repeats = repeats

    def _make(self, seed: int) -> nn.Module:
        """A fresh model under its own seed; the caller's random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._make_model()
        if not isinstance(model, nn.Module):
            raise EnsembleError(f"make_model must return an nn.Module, got {type(model).__name__}")
        return model

    def _adopt(self, models: list[nn.Module]) -> None:
        """Take over the first model's tree, its tensors replaced by stacks, and keep a copy to call."""
        tree = models[0]
        self._template = [copy.deepcopy(tree)]  # in a list: not a submodule of this one
        named = [_tensors(model) for model in models]
        stacks: dict[int, Tensor] = {}  # by the id of the first model's tensor, so that tied weights stay tied
        for name, tensor in named[0].items():
            if id(tensor) not in stacks:
                stack = torch.stack([own[name].detach() for own in named])
                is_parameter = isinstance(tensor, nn.Parameter)
                stacks[id(tensor)] = nn.Parameter(stack, tensor.requires_grad) if is_parameter else stack
        for module in tree.modules():
            for own in (module._parameters, module._buffers):
                own.update({name: stacks[id(x)] for name, x in own.items() if x is not None})  # type: ignore[misc]
        self.training = tree.training
        for name, child in tree._modules.items():
            self.add_module(name, child)
        for name, p in tree._parameters.items():
            self.register_parameter(name, p)
        for name, buffer in tree._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in tree._non_persistent_buffers_set)

    @property
    def template(self) -> nn.Module:
        """The model that is called with the tensors of a replica; its own weights are not used."""
        return self._template[0]

    @property
    def seeds(self) -> Tensor:
        """(R,) whole numbers: what replica i was initialised from, and what keys its noise."""
        return self._seeds

    def spread(self, values: Sequence[float]) -> Tensor:
        """One hyperparameter value per repeat, as the (R,) tensor an optimizer takes."""
        if len(values) != self.repeats:
            raise EnsembleError(f"{len(values)} values for {self.repeats} repeats of the replicas; give one for each")
        each = torch.tensor(values, dtype=next(self.parameters()).dtype, device=self._seeds.device)
        return each.repeat_interleave(self.replicas // self.repeats)

    def train(self, mode: bool = True) -> Ensemble:
        self._template[0].train(mode)
        return super().train(mode)

    # ── running all replicas ─────────────────────────────────────────────────────────────────────

    def forward(self, *inputs: Any, shared: bool = True) -> Any:
        """Every replica's output, stacked to (R, …).

        ``shared=True`` hands the same inputs to all replicas; ``shared=False`` takes inputs of shape (R, …)
        and gives replica i its own.
        """
        return self._map(lambda output: output, inputs, len(inputs), shared)

    def losses(self, loss: Loss, *batch: Any, shared: bool = True) -> Tensor:
        """(R,) losses: ``loss(model(x), y)`` for a batch (x, y); more targets are passed on.

        ``losses(...).sum().backward()`` leaves every replica its own gradient.
        """
        if len(batch) < 2:
            raise EnsembleError("losses() needs a batch of inputs and at least one target: losses(loss, x, y)")
        values: Tensor = self._map(loss, batch, 1, shared)
        if values.shape != (self.replicas,):
            raise EnsembleError(
                f"the loss must return one number for each replica, got shape {tuple(values.shape[1:])}: "
                f"use reduction='mean'"
            )
        return values

    def gradients(self, loss: Loss, *batch: Any, shared: bool = True) -> tuple[dict[str, Tensor], Tensor]:
        """Every replica's gradients by parameter name, and the (R,) losses; nothing is accumulated.

        The function to compile: differentiated inside the map, the whole pass becomes one graph.
        """
        stacks = self._stacks()
        trained = {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}
        rest = {name: x for name, x in stacks.items() if name not in trained}

        def one(own: dict[str, Tensor], others: dict[str, Tensor], *batch: Any) -> Tensor:
            return loss(functional_call(self._template[0], {**own, **others}, batch[:1]), *batch[1:])

        where = None if shared else 0
        mapped = vmap(grad_and_value(one), (0, 0, *(where for _ in batch)), randomness="different")
        gradients, values = mapped(trained, rest, *batch)
        return gradients, values

    def _map(self, finish: Loss, batch: tuple[Any, ...], inputs: int, shared: bool) -> Any:
        if not shared:
            for x in batch:
                if isinstance(x, Tensor) and (x.ndim == 0 or x.shape[0] != self.replicas):
                    raise EnsembleError(
                        f"per-replica inputs start with the replicas: expected ({self.replicas}, …), "
                        f"got {tuple(x.shape)}; pass shared=True to give all replicas the same batch"
                    )

        def one(tensors: dict[str, Tensor], *batch: Any) -> Any:
            return finish(functional_call(self._template[0], tensors, batch[:inputs]), *batch[inputs:])

        where = None if shared else 0
        mapped = vmap(one, (0, *(where for _ in batch)), randomness="different")
        return mapped(self._stacks(), *batch)

    def _stacks(self) -> dict[str, Tensor]:
        return {name: x for name, x in _tensors(self).items() if name != "_seeds"}

    # ── single replicas ──────────────────────────────────────────────────────────────────────────

    def alone(self, replica: int) -> nn.Module:
        """Replica ``replica`` as an ordinary model of its own, with its weights as they are now."""
        if not -self.replicas <= replica < self.replicas:
            raise EnsembleError(f"there are {self.replicas} replicas, so no replica {replica}")
        model = self._make(int(self._seeds[replica])).to(self._seeds.device)
        with torch.no_grad():
            own = _tensors(model)
            for name, stack in self._stacks().items():
                own[name].data = stack[replica].detach().clone()
        return model.train(self.training)

    def unstack(self) -> list[nn.Module]:
        """All replicas as ordinary models."""
        return [self.alone(i) for i in range(self.replicas)]


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; tied ones under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check_mappable(model: nn.Module) -> None:
    """Layers that torch cannot map over replicas."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            raise EnsembleError(
                f"{name or 'the model'} is an nn.{type(module).__name__}, which torch cannot run for many replicas at "
                f"once; train such models one by one"
            )
        if (
            isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm))
            and module.momentum is None
            and module.track_running_stats
        ):
            raise EnsembleError(
                f"{name} averages its statistics over all batches (momentum=None), which takes a number from the "
                f"device at every step; give it a momentum, such as 0.1"
            )


def _check_alike(models: list[nn.Module]) -> None:
    """Replicas must differ in numbers only."""
    shapes = [{name: (x.shape, x.dtype) for name, x in _tensors(model).items()} for model in models]
    for number, other in enumerate(shapes[1:], 1):
        if other != shapes[0]:
            different = sorted(n for n in shapes[0].keys() | other.keys() if shapes[0].get(n) != other.get(n))
            raise EnsembleError(
                f"make_model must build the same architecture every time; replica {number} differs from replica 0 in "
                f"{', '.join(different[:4])}"
            )
    if not shapes[0]:
        raise EnsembleError("make_model built a model without parameters")
