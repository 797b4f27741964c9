"""Langevin: one step of a constrained, stochastic, partitioned integrator as a ``torch.optim`` step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ._lines import users_line
from ._random import seeds
from ._sharding.agreement import agree_on_order, report
from ._sharding.shards import is_sharded, writes
from ._step import cautions, edits, hyper, keys, sgd
from ._step import state as states
from ._step.buckets import Bucket, make_buckets
from ._step.checkpoint import Checkpointed
from ._step.describe import routing_table
from ._step.diagnostics import Diagnosed
from ._step.finite import skip_non_finite
from ._step.groups import Grouped
from ._step.run import POLISH_EVERY, Gradients, Work, advance, pay_owed
from ._step.watch import Watch, thermostats
from .constraints import Constraint, Free

if TYPE_CHECKING:
    from ._sharding.ranks import Ranks

STRIDED = {torch.strided}


class Langevin(Grouped, Diagnosed, Checkpointed):
    r"""Train by simulating: weights are positions, and a step is one step of a splitting integrator.

    The dynamics (paper eq. 12) have a loss L, a constraint g, momenta p, friction γ and temperature τ:

    .. math:: dq = p\,dt, \qquad dp = (-∇L(q) - γp)\,dt + \sqrt{2γτ}\,dW - ∇g(q)\,dλ, \qquad g(q) = 0

    They are split into letters, and each letter is solved exactly where that is possible. A *word* says in which order
    the letters act, and hence which method this is: ``"BAOAB"``, ``"OBA"`` (SGD with momentum at τ = 0), ``"L"``
    (SGLD), ``"BACDEDCAB"`` (adaptive Langevin), or another; see :mod:`holonom.scheme`. Every option may be set per
    parameter group.

    After a long time the density of the weights is proportional to exp(−L(q)/τ), where L is the loss that is
    differentiated. If L is the *mean* negative log-likelihood of ``num_data`` examples, the Bayes posterior has
    τ = 1/num_data (:func:`holonom.posterior_temperature`).

    Args:
        params: parameters, named parameters or parameter groups.
        lr: the time step h. In words with momentum, h² takes the place of SGD's learning rate.
        scheme: the splitting word.
        friction: γ of the letter O; ``float("inf")`` draws the momentum anew at every step.
        temperature: τ of the letters O, E, L and M. 0 trains without noise; words with D or F then also need
            ``driving_noise=0`` and a ``coupling``.
        constraint: one of :mod:`holonom.constraints`, or None. Weights that start off it are moved to
            the nearest point, with a warning. In ``param_groups`` it appears as text.
        thermostat_time: t of the letter E, dξ/dt = (pᵀp/(Nτ) − 1)/t², where N is the number of degrees of freedom of a
            replica. None: 20·lr, with the lr at construction.
        thermostat_friction: γ of the letters D and F, which draw noise of size σ_A = √(2γτ). It is the mean of ξ where
            gradients have no noise. None: 1/t.
        coupling, driving_noise: ε and σ_A directly, as the papers give them. Needed at τ = 0.
        weight_decay: λ of a penalty ½λ‖q‖² added to the loss.
        maximize: maximise the loss instead of minimising it.
        foreach: accepted as in torch's optimizers, without effect.
        fuse: compile the step into one pass over memory: True from the first step, False never, None as soon as a run
            has moved so many weights that compiling pays. On a GPU, groups that are free, on circles or on spheres run
            holonom's own kernels unless it is False.
        seed: of the noise, a number of 64 bits. Every draw is a function of (seed, step, letter, parameter), so a
            resumed run repeats it. Two optimizers with the same seed draw the same numbers. None draws one number from
            torch's CPU generator, at construction, for all groups. Then two optimizers differ, and
            ``torch.manual_seed`` repeats a run. A checkpoint replaces that number, but not a seed that was given. A
            tensor of shape (R,) gives every replica of an :class:`holonom.Ensemble` its own noise and thermostat, as a
            model trained alone with that seed has them.

    Numbers may be tensors of shape (R,), one for each replica. If they are on another device than the parameters, they
    are copied. To change one later, assign to ``param_groups[i]["lr"]``; changing the given tensor has no effect.

    Parameters may be edited between steps (loading weights, clamping), in place or through ``.data``. The next step
    moves what is off its manifold to the nearest point, and projects its momentum to the tangent space. (The momentum
    of a square orthogonal weight is kept in the weight's own frame, and turns with it.)
    """

    guard_gradients: bool
    """Check gradients for NaN and infinity at every step (``benchmarks`` reports what that costs). True by default."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.1,
        *,
        scheme: str = "BAOAB",
        friction: float | Tensor = 1.0,
        temperature: float | Tensor = 0.0,
        constraint: Constraint | None = None,
        thermostat_time: float | Tensor | None = None,
        thermostat_friction: float | Tensor | None = None,
        coupling: float | Tensor | None = None,
        driving_noise: float | Tensor | None = None,
        weight_decay: float | Tensor = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fuse: bool | None = None,
        seed: int | Tensor | None = None,
        **unknown: NoReturn,
    ) -> None:
        keys.refuse_options(unknown, Langevin)
        if isinstance(params, torch.nn.Module):
            raise TypeError(
                f"{type(self).__name__} takes parameters, not a {type(params).__name__}: give model.parameters(), "
                f"model.named_parameters() or holonom.partition(model, …)"
            )
        params = params if isinstance(params, (Tensor, dict, set)) else list(params)
        self.guard_gradients = True
        self._default_space = constraint
        self._spaces: dict[Tensor, Constraint] = {}
        self._landings: states.Landings | None = []
        self.param_groups: list[dict[str, Any]] = []
        self._reset_caches()
        defaults = {
            "lr": lr, "scheme": scheme, "friction": friction, "temperature": temperature, "coupling": coupling,
            "driving_noise": driving_noise, "thermostat_time": thermostat_time,
            "thermostat_friction": thermostat_friction, "weight_decay": weight_decay, "maximize": maximize,
            "foreach": foreach, "fuse": fuse, "seed": seed,
        }  # fmt: skip
        try:
            super().__init__(params, seeds.with_seed(hyper.as_plain(defaults)))
            agree_on_order(self.param_groups)
            landings, self._landings = self._landings, None
            states.warn_landed(landings or [])
            cautions.warn_once(dict(enumerate(self.param_groups)), self._said)
        except Exception as error:  # also a warning that the user's filters turn into an error
            states.unland_(self._landed, list(self._landed))
            report(error, params, len(self.param_groups))
            raise

    @classmethod
    def like_sgd(
        cls, params: Iterable[Any], lr: float | Tensor, momentum: float | Tensor = 0.0, **options: Any
    ) -> Langevin:
        """The Langevin system whose word OBA at τ = 0 *is* ``torch.optim.SGD(params, lr, momentum)``.

        With v = −p/h, SGD's v ← μv + ∇L, θ ← θ − lr·v is OBA with h = √lr and μ = exp(−γh). (The
        papers' formulas have an h too many.) Add a constraint or a temperature and keep the settings.
        Groups hold SGD's ``lr`` and ``momentum`` in place of a friction, and schedulers change both as they do for SGD.
        Noise is drawn at the temperature 2τ/(1+μ), which puts *positions* at τ up to O(h²). At μ = 0 it is SGLD's
        noise, √(2τ·lr). Other words of the letters A, B and O may be given as ``scheme``.
        """
        opt = cls(sgd.in_sgd_terms(params, momentum, options), lr, **{"scheme": "OBA", **options})
        opt.defaults |= {"momentum": momentum, "friction": None}
        return opt

    # ── groups and buckets ───────────────────────────────────────────────────────────────────────

    def _reset_caches(self) -> None:
        self._made: dict[int, tuple[list[int], list[Bucket]]] = {}
        self._states: list[int] = []  # the ids of the state dicts that buckets hold
        self._versions: dict[int, int] = {}  # by the id of a parameter
        self._kinds: dict[Tensor, edits.Kind] = {}
        self._ranks: Ranks | None = None
        self._watch = Watch()
        self._skipped: dict[torch.device, Tensor] = {}
        self._warned_idle = False
        self._said: set[str] = self.__dict__.get("_said", set())  # warnings that are given once
        self._checked: dict[int, tuple[Any, ...]] = {}  # the settings of every group when they were last checked
        self._landed: dict[Tensor, states.Landed] = {}  # parameters that had to be landed, until they move
        for group in self.param_groups:
            self._note(group["params"], kinds=True)
            self._versions |= dict.fromkeys(map(id, group["params"]), edits.UNKNOWN)

    def _note(self, params: Iterable[Tensor], kinds: bool = False) -> None:
        """What was written to these parameters until now was written by the optimizer."""
        for p in params:
            self._versions[id(p)] = writes(p)
            if kinds:
                self._kinds[p] = edits.kind_of(p)

    def _buckets(self) -> list[list[Bucket]]:
        """Every group's buckets, made again when its parameters or their state dicts are other objects."""
        found, first = [], 0
        if self._states != list(map(id, self.state.values())):
            self._made.clear()
        for number, group in enumerate(self.param_groups):
            ids = [id(group), *map(id, group["params"])]
            if number not in self._made or self._made[number][0] != ids:
                self._adopt(number, group)
                group = self.param_groups[number]
                space = self._spaces[group["params"][0]] if group["params"] else Free()
                ids = [id(group), *map(id, group["params"])]
                self._made[number] = ids, self._make_buckets(group, space, states.names_of(group, first))
                self._states = list(map(id, self.state.values()))
            found.append(self._made[number][1])
            first += len(group["params"])
        return found

    def _make_buckets(self, group: dict[str, Any], space: Constraint, names: list[str]) -> list[Bucket]:
        if not any(map(is_sharded, group["params"])):
            return make_buckets(group, space, self.state, names)
        from ._sharding.ranks import Ranks

        if self._ranks is None:
            self._ranks = Ranks(self.param_groups, self._spaces)
        self._ranks.groups = self.param_groups
        return self._ranks.make_buckets(group, space, self.state, names, self._versions, self._said)

    # ── the step ─────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of every group's word, from the gradients at the present positions."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._integrate(self._work(), advance)
        return loss

    @torch.no_grad()
    def synchronize(self) -> None:
        """Apply the letters that a word has left for the next step, such as BAOAB's closing half kick.

        Call it after ``backward()`` at the present positions. Positions do not change. Momenta become those of the
        textbook's step, as :meth:`temperatures` and energies need them, without the normal part that the ``chord`` of
        :class:`~holonom.constraints.Orthogonal` may have. The next step does not apply these letters again.
        """
        self._integrate(self._work(), pay_owed)
        for buckets in self._buckets():
            for bucket in buckets:
                edits.drop_normal_parts_(bucket)

    def _work(self) -> list[Work]:
        """Every group with the buckets of its parameters that have a gradient."""
        work = []
        for group, buckets in zip(self.param_groups, self._buckets(), strict=True):
            moving, gradients = [], []
            for whole in buckets:
                found: list[Any] = [p.grad for p in whole.given]
                bucket = whole.select([g is not None for g in found])
                if bucket is not None:
                    moving.append(bucket)
                    gradients.append(Gradients(found if bucket is whole else (g for g in found if g is not None)))
            spread, told = None, ()
            if self._ranks is not None:
                spread = self._ranks.spread(group, [p for p in group["params"] if p.grad is not None and p.numel()])
                told = self._ranks.told(group)
            work.append(Work(group, moving, gradients, spread, told))
        return work

    def _integrate(self, work: list[Work], advance: Callable[..., Tensor | None]) -> None:
        """One step of these groups."""
        if self._ranks is None:
            self._check_all(work)  # raise for what a step cannot use, before anything is written
            skip = skip_non_finite(work) if self.guard_gradients else None
            skipped = [advance(one, self.state, one.on_device(skip)) for one in work]
        else:
            action = "synchronize" if advance is pay_owed else "step"
            work, skip, moved = self._ranks.prepare(
                action, work, chain(*self._buckets()), self._check_all, self.guard_gradients
            )
            try:
                skipped = [advance(one, self.state, one.on_device(skip)) for one in work]
            except Exception:  # on all ranks, and earlier groups have moved
                self._ranks.finish(moved)
                raise
            self._ranks.finish(moved)
        self._count_skipped([flag for flag in skipped if flag is not None])
        for b in (b for one in work for b in one.buckets):
            self._versions.update(zip(b.constrained_ids, b.writes()))
        if advance is not pay_owed and any("E" in one.group["scheme"] for one in work):
            self._watch.look_at_step(thermostats(self.param_groups, self.state))

    def _check_all(self, work: list[Work]) -> None:
        self._check(work)
        self._look_at_edits(work)

    def _check(self, work: list[Work]) -> None:
        for _, buckets, gradients, *_ in work:
            for number, bucket in enumerate(buckets):
                if bucket.refresh():
                    edits.refuse_moved(bucket, self._kinds)
                found = gradients[number] if gradients else ()
                usable = not found or (
                    bucket.shapes == [g.shape for g in found] and {g.layout for g in found} == STRIDED
                )
                if not usable:
                    edits.refuse_gradients(bucket, found)
        for number, group in enumerate(self.param_groups):
            now = (*hyper.settings(group), group.get("momentum"))
            if not all(map(is_, now, self._checked.get(number, (None,)))):
                hyper.check_now(group, number)
                states.check_word(group, self.state)
                cautions.warn_once({number: group}, self._said)
                # The check may have moved numbers to the device.
                self._checked[number] = (*hyper.settings(group), group.get("momentum"))
        has_buckets = any(buckets for _, buckets in self._made.values())
        if has_buckets and not any(one.buckets or one.spread for one in work) and not self._warned_idle:
            self._warned_idle = True
            warnings.warn(
                "no parameter of this optimizer has a gradient, so the step changes nothing. Call backward() first; "
                "if the model's parameters were replaced after the optimizer was built, build it again.",
                stacklevel=users_line(),
            )

    def _look_at_edits(self, work: list[Work]) -> None:
        """Raise for in-place edits that no step could take up; edits through ``.data`` are not seen here."""
        for group, bucket in ((one.group, bucket) for one in work for bucket in one.buckets):
            if bucket.writes() != list(map(self._versions.get, bucket.constrained_ids)):
                edits.refuse_unlandable(bucket, self._versions, first=not group["step"])
            for p in bucket.given if self._landed else ():
                self._landed.pop(p, None)

    def _count_skipped(self, skipped: list[Tensor]) -> None:
        if not skipped:
            return
        skip = skipped[0]
        if any(flag is not skip for flag in skipped):
            skip = torch.stack([flag.to(skip.device) for flag in skipped]).any()
        if skip.device not in self._skipped:
            with torch.inference_mode(False):  # it will be added to outside of that, too
                self._skipped[skip.device] = torch.zeros((), dtype=torch.int64, device=skip.device)
        self._skipped[skip.device] += skip

    # ── captured steps ───────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def _check_and_take_up(self, adopt: bool) -> None:
        """Check the groups as the next step would; ``adopt``: take up edits now, because it will not."""
        work = [Work(*pair, None) for pair in zip(self.param_groups, self._buckets(), strict=True)]
        self._check(work)
        self._look_at_edits(work)
        for one in work if adopt else ():
            edits.adopt_(one.buckets)
        self._note(p for one in work for b in one.buckets for p in b.given)

    def upcoming(self) -> Hashable | None:
        """The kind of the next step. A captured graph may be replayed for steps of its kind only."""
        groups = [group for group in self.param_groups if group["params"]]
        stacked = [group for group in groups if self._spaces[group["params"][0]].traits.stacked]
        return tuple(group["step"] % POLISH_EVERY == 0 for group in stacked)

    def count_replays(self, steps: int) -> None:
        """Count steps on the host that ran as replays of a captured graph, which runs no Python."""
        for group in self.param_groups:
            group["step"] += steps
        self._note(p for group in self.param_groups for p in group["params"])

    def __repr__(self) -> str:
        unset = {**self.defaults, "constraint": repr(self._default_space or Free())}  # of groups a library put there
        return routing_table(type(self).__name__, [{**unset, **group} for group in self.param_groups])
