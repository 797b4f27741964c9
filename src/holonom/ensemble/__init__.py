"""Ensemble: R replicas of a model as one batched module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from .._numbers import as_whole
from .._random import mix
from .._random.seeds import checked, fresh_seed, refuse_ranks, seeded
from .._sharding.replicas import Shares
from .._torch import replace_tensors, take_over, watch_gradient
from ..errors import EnsembleError
from .checks import check_alike, check_mappable, tensors
from .failures import explain
from .known import ENSEMBLES

Loss = Callable[..., Tensor]
Tensors = dict[str, Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


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
        mesh: a ``DeviceMesh`` of one dimension over whose ranks the R replicas are split. Every rank calls this with
            the same arguments and holds its share; ``replicas`` is then the number of members here. :meth:`share`
            cuts values of all members, :meth:`gather` puts results side by side.
    """

    batch_dims = 1

    _averaged: bool | None = None
    """Whether the first backward pass came from ``losses().mean()``; None before it."""

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
        mesh: Any = None,
    ) -> None:
        super().__init__()
        replicas, repeats = _count("replicas", replicas), _count("repeats", repeats)
        if isinstance(make_model, nn.Module):
            raise EnsembleError(
                f"give a function that builds a model, such as lambda: {type(make_model).__name__}(…), not a model; "
                f"models that exist already go into Ensemble.from_models([…])"
            )
        if seed is None:
            refuse_ranks("Ensemble")
        self.seed_given = seed is not None
        number = fresh_seed() if seed is None else checked(seed)
        self._shares = None if mesh is None else Shares(mesh, replicas, repeats, (seed, first))
        if self._shares is not None:
            first, replicas = first + self._shares.first, self._shares.count
        numbers = [mix(number, first + i) >> 1 for i in range(replicas)]
        self._make_model = make_model
        models = [self._make(number) for number in numbers]
        if len(set(map(id, models))) < len(models):
            raise EnsembleError("make_model returned the same model twice; it must build a new one in every call")
        check_alike(models, "the models of make_model")
        check_mappable(models[0])
        self._adopt(models * repeats)
        self.register_buffer("_seeds", torch.tensor(numbers * repeats), persistent=False)
        self.replicas = replicas * repeats
        self.repeats = repeats
        ENSEMBLES.add(self)

    @classmethod
    def from_models(cls, models: Iterable[nn.Module], seed: int | None = None, *, repeats: int = 1) -> Ensemble:
        """An ensemble of models that exist already, such as checkpoints of several runs; their tensors are copied.

        The models must be alike in all but the contents of their tensors. ``seed`` and ``repeats`` are the
        constructor's; :attr:`seeds` then key the replicas' noise alone.
        """
        one = isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList)
        given = [] if one else list(models)
        wrong = [type(model).__name__ for model in given if not isinstance(model, nn.Module)]
        if wrong or not given:
            what = f"one {type(models).__name__}" if one else "an empty one"
            raise EnsembleError(f"from_models takes a list of nn.Modules, got {', '.join(wrong) or what}")
        check_alike(given, "the models of from_models")
        source = iter(given)
        options = {} if seed is None else {"seed": seed}
        ensemble = cls(lambda: copy.deepcopy(next(source)), len(given), repeats=repeats, **options)
        template = ensemble.template
        ensemble._make_model = lambda: copy.deepcopy(template)  # which alone() fills with a replica's tensors
        return ensemble.to(next(iter(tensors(given[0]).values())).device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        ENSEMBLES.add(self)

    def _make(self, seed: int) -> nn.Module:
        """A fresh model under its own seed; the caller's random state stays as it was."""
        with seeded(seed):
            model = self._make_model()
        if not isinstance(model, nn.Module):
            raise EnsembleError(f"make_model must return an nn.Module, got {type(model).__name__}")
        return model

    def _adopt(self, models: list[nn.Module]) -> None:
        """Take over a copy of the first model's tree, its tensors replaced by stacks, and keep the model to call."""
        tree = copy.deepcopy(models[0])
        self._template = models[:1]  # in a list: not a submodule of this one
        named = [tensors(model) for model in models]
        stacks: dict[int, Tensor] = {}  # by the id of the tree's tensor, so that tied weights stay tied
        for name, tensor in tensors(tree).items():
            if id(tensor) not in stacks:
                stack = torch.stack([own[name].detach() for own in named])
                is_parameter = isinstance(tensor, nn.Parameter)
                stacks[id(tensor)] = nn.Parameter(stack, tensor.requires_grad) if is_parameter else stack
        replace_tensors(tree, stacks)
        self.training = tree.training
        take_over(self, tree)

    @property
    def template(self) -> nn.Module:
        """The model that is called with the tensors of a replica; its own weights are not used."""
        return self._template[0]

    @property
    def seeds(self) -> Tensor:
        """(R,) whole numbers: what replica i was initialised from, and what keys its noise."""
        return self._seeds

    def spread(self, values: Sequence[float] | Tensor) -> Tensor:
        """One hyperparameter value per repeat, as the (R,) tensor an optimizer takes."""
        if len(values) != self.repeats:
            raise EnsembleError(f"{len(values)} values for {self.repeats} repeats of the replicas; give one for each")
        each = torch.as_tensor(values, dtype=next(self.parameters()).dtype, device=self._seeds.device)
        return each.repeat_interleave(self.replicas // self.repeats)

    def share(self, values: Tensor) -> Tensor:
        """Of one value for every member on all ranks of the mesh, such as a temperature, those of the members here."""
        return values if self._shares is None else self._shares.mine(values)

    def gather(self, values: Tensor) -> Tensor:
        """One value, or tensor, for every member on all ranks of the mesh, from those of the members here, (R, …).

        All ranks call it together and get the same. Without a mesh these are the values themselves.
        """
        return values if self._shares is None else self._shares.gather(values)

    def train(self, mode: bool = True) -> Ensemble:
        self._template[0].train(mode)
        return super().train(mode)

    # ── running all replicas ─────────────────────────────────────────────────────────────────────

    def forward(self, *inputs: Any, shared: bool = True, **keywords: Any) -> Any:
        """Every replica's output, stacked to (R, …).

        ``shared=True`` hands the same inputs to all replicas; ``shared=False`` takes tensors of shape (R, …)
        and gives replica i its own.
        """
        return self._map(lambda output: output, (inputs, keywords), (), shared)

    def losses(self, loss: Loss, inputs: Any, *targets: Any, shared: bool = True) -> Tensor:
        """(R,) losses: ``loss(model(x), y)`` for a batch ``losses(loss, x, y)``; more targets are passed on.

        A tuple of inputs is given to the model as several arguments, a dict as keyword arguments.
        ``losses(...).sum().backward()`` leaves every replica its own gradient.
        """
        if not targets:
            raise EnsembleError("losses() needs a batch of inputs and at least one target: losses(loss, x, y)")
        values: Tensor = self._map(loss, _arguments(inputs), targets, shared)
        if values.shape != (self.replicas,):
            raise EnsembleError(
                f"the loss must return one number for each replica, got shape {tuple(values.shape[1:])}: "
                f"use reduction='mean'"
            )
        if self._averaged is None and values.requires_grad and self.replicas > 1:
            watch_gradient(values, self._record_average)
        return values

    def gradients(self, loss: Loss, inputs: Any, *targets: Any, shared: bool = True) -> tuple[Tensors, Tensor]:
        """Every replica's gradients by parameter name, and the (R,) losses; nothing is accumulated.

        Inputs are those of :meth:`losses`. The function to compile: differentiated inside the map, the whole pass
        becomes one graph.
        """
        trained = {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}
        rest = {name: x for name, x in self._stacks().items() if name not in trained}
        batch = (*_arguments(inputs), targets)
        gradients, values = self._run(self._pass(loss), trained, rest, batch, shared, grad_and_value)
        return gradients, values

    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Scale every replica's gradient down to a norm of at most ``max_norm``; returns the (R,) norms before.

        ``torch.nn.utils.clip_grad_norm_`` on an ensemble would take one norm of all replicas. ``max_norm`` is a number,
        or one for each replica. Nothing is read by the host.
        """
        if isinstance(max_norm, Tensor) and max_norm.numel() != 1 and max_norm.shape != (self.replicas,):
            raise EnsembleError(f"max_norm has shape {tuple(max_norm.shape)}; give a number, or ({self.replicas},)")
        if not isinstance(max_norm, Tensor) and not max_norm >= 0:
            raise EnsembleError(f"max_norm must be at least 0, got {max_norm}, which would turn gradients around")
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if not gradients:
            return torch.zeros(self.replicas, device=self._seeds.device)
        norms = [torch.linalg.vector_norm(g.flatten(1) if g.ndim > 1 else g[:, None], dim=1) for g in gradients]
        total: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0]) for n in norms]), dim=0)
        most = max_norm.to(total.device) if isinstance(max_norm, Tensor) else max_norm
        scale = (most / (total + 1e-6)).clamp(max=1.0)
        for g in gradients:
            g.mul_(scale.to(g).reshape(-1, *(1 for _ in g.shape[1:])))
        return total

    def _map(self, finish: Loss, arguments: Arguments, targets: tuple[Any, ...], shared: bool) -> Any:
        return self._run(self._pass(finish), self._stacks(), {}, (*arguments, targets), shared)

    def _pass(self, finish: Loss) -> Callable[..., Any]:
        """One replica as a function of its tensors, inputs, keyword inputs and targets."""

        def one(own: Tensors, others: Tensors, inputs: Any, keywords: dict[str, Any], targets: Any) -> Any:
            return finish(functional_call(self._template[0], {**own, **others}, inputs, keywords), *targets)

        return one

    def _run(
        self,
        one: Callable[..., Any],
        own: Tensors,
        others: Tensors,
        batch: tuple[Any, ...],
        shared: bool,
        transform: Callable[..., Any] = lambda one: one,
    ) -> Any:
        """A function of one replica, transformed and run for all of them."""
        dims = (0, 0, *((None,) * len(batch) if shared else map(self._replica_dims, batch)))
        mapped = vmap(transform(one), dims, randomness="different")
        try:
            return mapped(own, others, *batch)
        except Exception as error:
            reason = explain(self._template[0], one, mapped, dims, (own, others, *batch), error)
            if reason is error:
                raise
            raise reason from error

    def _replica_dims(self, x: Any) -> Any:
        """Where the replicas are in an input: in front of every tensor, nowhere in a number or a word."""
        if type(x) is tuple:
            return tuple(map(self._replica_dims, x))
        if isinstance(x, dict):
            return {name: self._replica_dims(part) for name, part in x.items()}
        if isinstance(x, Tensor) and (x.ndim == 0 or x.shape[0] != self.replicas):
            raise EnsembleError(
                f"per-replica inputs start with the replicas: expected ({self.replicas}, …), "
                f"got {tuple(x.shape)}; pass shared=True to give all replicas the same batch"
            )
        return None if x is None or isinstance(x, (bool, int, float, str)) else 0

    def _record_average(self, gradient: Tensor) -> None:
        """Whether the gradient that came to the first losses is 1/R everywhere, as that of their mean is."""
        if self._averaged is None:
            self._averaged = bool(((gradient * self.replicas - 1).abs() < 1e-3).all())

    def _stacks(self) -> dict[str, Tensor]:
        return {name: x for name, x in tensors(self).items() if name != "_seeds"}

    # ── single replicas ──────────────────────────────────────────────────────────────────────────

    def alone(self, replica: int) -> nn.Module:
        """Replica ``replica`` as an ordinary model of its own, with its weights as they are now."""
        if not -self.replicas <= replica < self.replicas:
            raise EnsembleError(f"there are {self.replicas} replicas, so no replica {replica}")
        model = self._make(int(self._seeds[replica])).to(self._seeds.device)
        with torch.no_grad():
            own = tensors(model)
            for name, stack in self._stacks().items():
                own[name].data = stack[replica].detach().clone()
        return model.train(self.training)

    def unstack(self) -> list[nn.Module]:
        """All replicas as ordinary models."""
        return [self.alone(i) for i in range(self.replicas)]


def _arguments(inputs: Any) -> Arguments:
    """A model's arguments: several from a tuple, keywords from a dict, else the one input."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs, {}) if type(inputs) is tuple else ((inputs,), {})


def _count(name: str, value: Any) -> int:
    number = as_whole(value)
    if number is None or number < 1:
        raise EnsembleError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number
