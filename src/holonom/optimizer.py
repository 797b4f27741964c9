"""Langevin: one step of a constrained, stochastic, partitioned integrator as a ``torch.optim`` step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import checkpoint, engine, groups, guard, heap, hyper, sgd
from .cell import Cell
from .constraints.base import Constraint
from .errors import NonFiniteGradientError, ProjectionError
from .hooks import heard_if_asked
from .ledger import Ledger
from .lists import scale_
from .observe import Phases, kinetic_temperature, worst
from .scheme import compile_word
from .table import routing_table


class Langevin(Optimizer):
    r"""Train by simulating: parameters are positions, a step is one step of a splitting integrator.

    The dynamics (paper eq. 12, with constraint g and momenta p)

        dq = p dt,   dp = (−∇L(q) − γp) dt + √(2γτ) dW − ∇g(q) dλ,   g(q) = 0

    is split into letters, each solved exactly where that is possible, and a *word* says in which
    order they act and hence which method this is: ``"BAOAB"``, ``"OBA"`` (SGD with momentum at
    τ = 0), ``"L"`` (SGLD), ``"BACDEDCAB"`` (adaptive Langevin), or any other legal word; see
    :mod:`holonom.scheme`. Every option may be set per parameter group.

    Temperature is that of the loss as given: the invariant law is exp(−L(q)/τ). For the *mean* negative
    log-likelihood of ``num_data`` examples the Bayes posterior is τ = 1/num_data
    (:func:`holonom.posterior_temperature`).

    Args:
        params: parameters, named parameters or parameter groups.
        lr: the time step h. With momentum and τ = 0, h² is what SGD calls the learning rate.
        scheme: the splitting word.
        friction: γ of the letter O; ``float("inf")`` draws the momentum anew at every step.
        temperature: τ of the letters O, E, L and M; 0 trains without noise (words with D or F: with
            ``driving_noise=0`` as well).
        constraint: a :mod:`holonom.constraints` space, or None. Weights that start off it are moved to
            the nearest point, with a warning. Inside ``param_groups`` it appears as text.
        coupling: ε of the thermostat (letter E).
        driving_noise: σ_A of the letters D and F.
        weight_decay: λ of a penalty ½λ‖q‖² added to the loss.
        maximize: climb instead of descend.
        foreach: True uses torch's multi-tensor kernels, False handles one tensor at a time, None chooses (tensors that
            do not stay in a CPU's caches go one at a time).
        fuse: compile the step into one pass over memory: True from the first step, False never, None
            once a run has moved enough weights for the compiler's time to have paid.
        seed: of the noise. Draws are keyed by (seed, step, letter, parameter), so a resumed run repeats them.
            A tensor of shape (R,) gives every replica of an :class:`holonom.Ensemble` its own stream and
            thermostat; a model trained alone with one of those seeds (0-dim) draws the same. Tensors draw from a
            counter-based generator that compiles: with ``fuse=True`` a noisy step on a CPU with AVX-512
            takes about half the time it takes with an int (without, about as long), uncompiled several times as long.

    In-place edits of a parameter between steps (loading weights, clamping) are taken up by the next
    step: the parameter is landed on its manifold again and its momentum projected (that of a square orthogonal
    weight, which is kept in the weight's own frame, turns with it).
    """

    _cells: list[list[Cell]] | None

    guard_gradients: bool = True
    """Check gradients for NaN and infinity at every step (``benchmarks`` reports what that costs)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *,
        scheme: str = "BAOAB",
        friction: float | Tensor = 1.0,
        temperature: float | Tensor = 0.0,
        constraint: Constraint | None = None,
        coupling: float | Tensor = 0.1,
        driving_noise: float | Tensor = 0.01,
        weight_decay: float | Tensor = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fuse: bool | None = None,
        seed: int | Tensor = 0,
    ) -> None:
        self._default_space = constraint
        self._spaces: list[Constraint] = []
        self._landings: groups.Landings | None = []
        self.param_groups: list[dict[str, Any]] = []
        self._reset_caches()
        defaults = {
            "lr": lr, "scheme": scheme, "friction": friction, "temperature": temperature, "coupling": coupling,
            "driving_noise": driving_noise, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
            "fuse": fuse, "seed": seed,
        }  # fmt: skip
        super().__init__(params, hyper.as_written(defaults))
        heap.keep_freed_memory()
        landings, self._landings = self._landings, None
        groups.warn_landed(landings or [], stacklevel=3)

    @classmethod
    def like_sgd(cls, params: Iterable[Any], lr: float, momentum: float = 0.0, **options: Any) -> Langevin:
        """The Langevin system whose word OBA at τ = 0 *is* ``torch.optim.SGD(params, lr, momentum)``.

        With v = −p/h, SGD's v ← μv + ∇L, θ ← θ − lr·v is OBA with h = √lr and μ = e^{−γh}. (The
        papers' formulas carry a stray h.) Add a constraint or a temperature and keep the settings.
        Learning-rate schedulers act on h = √lr, and μ = e^{−γh} follows: to divide SGD's rate by 10,
        divide this one by √10. Groups may have an ``lr`` and a ``momentum`` of their own, as SGD's.
        """
        sgd.refuse(options)
        given, h, friction = sgd.as_langevin(params, lr, momentum)
        return cls(given, h, friction=friction, **{"scheme": "OBA", **options})

    # ── groups and state ─────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"a parameter group must be a dict, got {type(param_group).__name__}")
        group = hyper.as_written(param_group)
        space = group.pop("constraint", self._default_space) or Constraint()
        if not isinstance(space, Constraint):
            raise TypeError(f"constraint must be a holonom.constraints object or None, got {space!r}")
        hyper.check_group({**self.defaults, **group}, space)
        if isinstance(group["params"], set):
            raise TypeError("parameters need an order; give a list instead of a set")
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        group["params"] = params
        known = {id(p) for other in self.param_groups for p in other["params"]}
        groups.check_params([x[1] if isinstance(x, tuple) else x for x in params], known)
        super().add_param_group(group)
        group = self.param_groups[-1]
        group["constraint"] = repr(space)
        group["step"], group["owed"] = 0, None
        try:
            hyper.check_replicas(group)
            landings = groups.create_state(group, space, len(known) - len(params), self.state, self._arrived)
        except Exception:
            for p in self.param_groups.pop()["params"]:
                self.state.pop(p, None)
                self._arrived.pop(p, None)
            raise
        self._spaces.append(space)
        self._cells = None
        self._ledger.enter(group["params"])
        if self._landings is None:
            groups.warn_landed(landings, stacklevel=4)
        else:
            self._landings += landings

    def _reset_caches(self) -> None:
        self._cells = None
        self._ledger = Ledger()
        for group in self.param_groups:
            self._ledger.enter(group["params"])
        self._skipped: dict[torch.device, Tensor] = {}
        self._warned_idle = False
        self._checked: dict[int, tuple[Any, ...]] = {}  # what the groups held when it was last looked at
        self._arrived: dict[Tensor, groups.Arrival] = {}  # parameters that had to be landed, until they move

    def _all_cells(self) -> list[list[Cell]]:
        """Parameters that move together: one space, dtype and device, and one shape where stacked."""
        if self._cells is not None:
            return self._cells
        cells: list[list[Cell]] = []
        index = -1
        for group, space in zip(self.param_groups, self._spaces, strict=True):
            buckets: dict[tuple[Any, ...], Cell] = {}
            for offset, p in enumerate(group["params"]):
                index += 1
                if not p.numel():
                    continue
                key: tuple[Any, ...] = (p.dtype, p.device)
                if space.stacks:
                    key += (space.view(p).shape,)
                cell = buckets.setdefault(key, Cell(space, [], [], []))
                cell.append(p, groups.name_of(group, offset, index), index)
            cells.append(list(buckets.values()))
        self._cells = cells
        return cells

    # ── the step ─────────────────────────────────────────────────────────────────────────────────

    @heard_if_asked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of every group's word, from the gradients at the present positions."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        active = self._active_cells()
        with self._guarded(active):
            for group, cells in zip(self.param_groups, active, strict=True):
                engine.advance(group, cells, self.state)
        self._ledger.note(p for cells in active for cell in cells for p in cell.params)
        return loss

    @torch.no_grad()
    def synchronize(self) -> None:
        """Pay what a rotated word still owes: BAOAB's closing half kick, with the gradients at hand.

        Positions do not change; momenta become those of the textbook's step, as
        :meth:`temperatures` or an energy wants them; where a state may lean off the tangent space (a
        ``chord`` of :class:`~holonom.constraints.Orthogonal`), only the momentum is left of it. Call it
        after ``backward()`` at the present positions; the next step knows that the debt is paid.
        """
        active = self._active_cells()
        with self._guarded(active):
            for group, cells in zip(self.param_groups, active, strict=True):
                engine.pay_debt(group, cells, self.state)
        for phases in self._phases():
            for cell, phase in phases:
                if cell.space.leans and phase.p:
                    cell.space.project_(phase, phase.p)

    def _active_cells(self) -> list[list[Cell]]:
        """The cells, less the parameters without a gradient; in-place edits are taken up here."""
        everyone = self._all_cells()
        active = []
        for cells in everyone:
            kept = []
            for cell in cells:
                have = [p.grad is not None for p in cell.params]
                if all(have):
                    kept.append(cell)
                elif any(have):
                    kept.append(cell.select(have))
            active.append(kept)
        if any(everyone) and not any(active) and not self._warned_idle:
            self._warned_idle = True
            warnings.warn(
                "no parameter of this optimizer has a gradient, so the step changes nothing. Call backward() first; "
                "if the model's parameters were replaced after the optimizer was built, build it again.",
                stacklevel=5,
            )
        self._look_over(list(zip(self.param_groups, active, strict=True)))
        return active

    def _look_over(self, moving: Sequence[tuple[dict[str, Any], list[Cell]]]) -> None:
        """Refuse what a step cannot take before anything is touched, then take up what was edited in place."""
        for _, cells in moving:
            for cell in cells:
                self._ledger.refuse(cell)
        for number, group in enumerate(self.param_groups):
            written = hyper.written(group)
            if not all(map(is_, written, self._checked.get(number, (None,)))):
                hyper.check_now(group, number)
                engine.check_word(group, self.state)
                self._checked[number] = written
        for group, cells in moving:
            for cell in cells:
                self._ledger.take_up(cell, self.state, fresh=not group["step"])
                for p in cell.params if self._arrived else ():
                    self._arrived.pop(p, None)

    def _guarded(self, active: list[list[Cell]]) -> AbstractContextManager[None]:
        if not self.guard_gradients:
            return guard.UNGUARDED
        step = max((g["step"] for g in self.param_groups), default=0)
        return guard.guarded(active, self.state, step, self._skipped)

    # ── looking at the system ────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise if a step was skipped on the device, or a constraint is lost; reads the device once."""
        if skipped := self._count_skipped():
            raise NonFiniteGradientError(
                f"{skipped} step(s) since the last check() met a NaN or infinite gradient or a projection without a "
                f"root and were left out; the weights are those of the last good step. Lower lr, clip gradients, or "
                f"use a GradScaler."
            )
        for number, (residual, space) in enumerate(zip(self.residuals(), self._spaces, strict=True)):
            if not residual <= space.lost:
                raise ProjectionError(
                    f"group {number} has left its manifold: {self.param_groups[number]['constraint']} is violated by "
                    f"{residual:.2g}. Its steps were too large to project; lower lr and call project_()"
                )

    def _warn_skipped(self) -> None:
        if skipped := self._count_skipped():
            warnings.warn(f"{skipped} step(s) were left out for non-finite numbers; check() says more", stacklevel=3)

    def _count_skipped(self) -> int:
        skipped = sum(int(count) for count in self._skipped.values())
        for count in self._skipped.values():
            count.zero_()  # in place: a captured graph goes on counting here
        return skipped

    def _phases(self) -> list[Phases]:
        return [[(cell, cell.widened(cell.phase(self.state))) for cell in cells] for cells in self._all_cells()]

    @torch.no_grad()
    def residuals(self) -> list[float]:
        """Per group: the largest constraint violation of the parameters as they are now.

        Relative (θ²+ξ²)/r² − 1 for circle and sphere, max|QᵀQ − I| for orthogonal, max|g| for level
        sets, 0 without a constraint.
        """
        self._warn_skipped()
        return [worst(phases, lambda space, phase: space.residual(phase)) for phases in self._phases()]

    @torch.no_grad()
    def cotangencies(self) -> list[float]:
        """Per group: the largest |∇g·p|, how far a momentum points off its manifold."""
        moving = [[(cell, phase) for cell, phase in phases if phase.p] for phases in self._phases()]
        return [worst(phases, lambda space, phase: space.cotangency(phase)) for phases in moving]

    @torch.no_grad()
    def temperatures(self) -> list[float]:
        """Per group: pᵀp / degrees of freedom, constraints subtracted; NaN for words without momentum.

        A rotated word still owes part of a kick; :meth:`synchronize` first for the textbook's momenta.
        """
        return [kinetic_temperature(*pair) for pair in zip(self.param_groups, self._phases(), strict=True)]

    @torch.no_grad()
    def project_(self) -> None:
        """Move every parameter to the nearest point of its manifold: after averaging weights, say."""
        for group, space in zip(self.param_groups, self._spaces, strict=True):
            for p in group["params"]:
                groups.take_up_edit(space, p, "a parameter", self.state, force=True)
                self._ledger.note([p])

    @torch.no_grad()
    def scale_momenta_(self, factor: float) -> None:
        """Multiply all momenta: √(τ'/τ) when the temperature jumps, −1 to run backwards, 0 to stand still."""
        for group, pairs in zip(self.param_groups, self._phases(), strict=True):
            if not compile_word(group["scheme"]).overdamped:  # whose noise is kept where others keep momenta
                for _, phase in pairs:
                    scale_(phase.momenta, factor)

    def steady_steps(self) -> list[tuple[list[list[Tensor]], Callable[[list[list[Tensor]]], None]]] | None:
        """For tracing: every group's step as a function of its cells' gradients, beside the cells' parameters.

        None unless all groups run element- or row-wise on seeds of their own, have taken their first
        step, and keep positions and state in one precision. Count what runs with :meth:`count_replays`.
        """
        cells = self._all_cells()
        everyone = [cell for group in cells for cell in group]
        for group in self.param_groups:
            if not isinstance(group["seed"], Tensor) or group["owed"] is None or group["step"] == 0:
                return None
        if not all(cell.space.fusible and cell.params[0].dtype.itemsize >= 4 for cell in everyone) or not all(cells):
            return None
        return [
            ([cell.params for cell in own], engine.steady(group, own, self.state))
            for group, own in zip(self.param_groups, cells, strict=True)
        ]

    def count_replays(self, steps: int) -> None:
        """Tell the host about steps that ran as replays of a captured graph, which runs no Python."""
        for group in self.param_groups:
            group["step"] += steps
        self._ledger.note(p for group in self.param_groups for p in group["params"])

    # ── torch's contract ─────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def _settle_edits(self) -> None:
        """Take up edits now rather than at the next step: a checkpoint's state belongs to its weights."""
        for group, cells in zip(self.param_groups, self._all_cells(), strict=True):
            for cell in cells:
                self._ledger.take_up(cell, self.state, fresh=not group["step"])

    def state_dict(self) -> dict[str, Any]:
        self._warn_skipped()
        self._settle_edits()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; constraints and schemes must be those it was made with."""
        loaded: dict[str, Any] = {}
        arrived = dict(self._arrived)

        def check(_: Optimizer, saved: dict[str, Any]) -> None:
            checkpoint.check(self.param_groups, self.state, saved)
            loaded.update(saved)

        def restore(_: Optimizer) -> None:
            checkpoint.restore_state(self.param_groups, self.state, loaded)
            checkpoint.put_back(self.param_groups, self._spaces, self.state, arrived)
            self._reset_caches()

        # As hooks: after those of the user that rewrite a checkpoint, before those that look at the result.
        before = self.register_load_state_dict_pre_hook(check)
        after = self.register_load_state_dict_post_hook(restore, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        self._settle_edits()
        own = {"_spaces": self._spaces, "_default_space": self._default_space, "_landings": None}
        return {**super().__getstate__(), **own, "guard_gradients": self.guard_gradients}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset_caches()

    def __deepcopy__(self, memo: dict[int, Any]) -> Langevin:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return new

    def __repr__(self) -> str:
        return routing_table(type(self).__name__, self.param_groups)
