"""Langevin: one step of a constrained, stochastic, partitioned integrator as a ``torch.optim`` step."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import checkpoint, guard, hyper
from .cell import Cell, stacked, state_dtype, unstack_
from .constraints.base import Constraint, Landing, Phase
from .errors import NonFiniteGradientError
from .flows import LETTERS, is_noisy
from .lists import Scalar, Tensors, scale_, sum_of_squares
from .scheme import Op, compile_word
from .table import routing_table


class Langevin(Optimizer):
    r"""Train by simulating: parameters are positions, a step is one step of a splitting integrator.

    The dynamics (paper eq. 12, with constraint g and momenta p)

        dq = p dt,   dp = (−∇L(q) − γp) dt + √(2γτ) dW − ∇g(q) dλ,   g(q) = 0

    is split into letters, each solved exactly where that is possible, and a *word* says in which
    order they act and hence which method this is: ``"BAOAB"``, ``"OBA"`` (SGD with momentum at
    τ = 0), ``"L"`` (SGLD), ``"BACDEDCAB"`` (adaptive Langevin), or any other legal word; see
    :mod:`holonom.scheme`. Every option may be set per parameter group.

    Temperature is that of the loss as given: the invariant law is exp(−L(q)/τ). For a *mean* loss
    over ``num_data`` examples the Bayes posterior is τ = 1/num_data (:func:`holonom.posterior_temperature`).

    Args:
        params: parameters, named parameters or parameter groups.
        lr: the time step h. With momentum and τ = 0, h² is what SGD calls the learning rate.
        scheme: the splitting word.
        friction: γ of the letter O; ``float("inf")`` draws the momentum anew at every step.
        temperature: τ of the letters O, E, L and M; 0 trains without noise.
        constraint: a :mod:`holonom.constraints` space, or None. Weights that start off it are moved to
            the nearest point, with a warning. Inside ``param_groups`` it appears as text.
        coupling: ε of the thermostat (letter E).
        driving_noise: σ_A of the letters D and F.
        weight_decay: λ of a penalty ½λ‖q‖² added to the loss.
        maximize: climb instead of descend.
        foreach: False handles one tensor at a time; otherwise torch's multi-tensor kernels are used.
        fuse: compile the step into one pass over memory: True from the first step, False never, None
            once a run has moved enough weights for the compiler's time to have paid.
        seed: of the noise. Draws are keyed by (seed, step, letter, parameter), so a resumed run repeats them.

    In-place edits of a parameter between steps (loading weights, clamping) are taken up by the next
    step: the parameter is landed on its manifold again and its momentum projected.
    """

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
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fuse: bool | None = None,
        seed: int = 0,
    ) -> None:
        self._default_space = constraint
        self._spaces: list[Constraint] = []
        self._landings: list[tuple[Constraint, Landing]] | None = []
        self._reset_caches()
        defaults = {
            "lr": lr, "scheme": scheme, "friction": friction, "temperature": temperature, "coupling": coupling,
            "driving_noise": driving_noise, "weight_decay": weight_decay, "maximize": maximize, "foreach": foreach,
            "fuse": fuse, "seed": seed,
        }  # fmt: skip
        super().__init__(params, defaults)
        landings, self._landings = self._landings, None
        _warn_landed(landings)

    @classmethod
    def like_sgd(cls, params: Iterable[Any], lr: float, momentum: float = 0.0, **options: Any) -> Langevin:
        """The Langevin system whose word OBA at τ = 0 *is* ``torch.optim.SGD(params, lr, momentum)``.

        With v = −p/h, SGD's v ← μv + ∇L, θ ← θ − lr·v is OBA with h = √lr and μ = e^{−γh}. (The
        seeds' formulas carry a stray h.) Add a constraint or a temperature and keep the settings.
        Learning-rate schedulers act on h = √lr, and μ = e^{−γh} follows: to divide SGD's rate by 10,
        divide this one by √10.
        """
        if not lr > 0:
            raise ValueError(f"lr must be positive to stand for a time step, got {lr}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum (μ = e^(−γh)) must lie in [0, 1), got {momentum}")
        h = math.sqrt(lr)
        friction = -math.log(momentum) / h if momentum > 0 else math.inf
        return cls(params, h, friction=friction, **{"scheme": "OBA", **options})

    # ── groups and state ─────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = dict(param_group)
        space = group.pop("constraint", self._default_space) or Constraint()
        if not isinstance(space, Constraint):
            raise TypeError(f"constraint must be a holonom.constraints object or None, got {space!r}")
        hyper.check_group({**self.defaults, **group}, space)
        if isinstance(group["params"], set):
            raise TypeError("parameters need an order; give a list instead of a set")
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        group["params"] = params
        self._check_params([x[1] if isinstance(x, tuple) else x for x in params])
        super().add_param_group(group)
        group = self.param_groups[-1]
        group["constraint"] = repr(space)
        group["step"], group["owed"] = 0, 0.0
        try:
            landings = self._create_state(group, space)
        except Exception:
            self.param_groups.pop()
            raise
        self._spaces.append(space)
        self._reset_caches()
        if self._landings is None:
            _warn_landed(landings)
        else:
            self._landings += landings

    def _check_params(self, params: list[Any]) -> None:
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"parameters must be tensors, got {type(p).__name__}")
            if id(p) in known:
                raise ValueError(
                    f"a parameter of shape {tuple(p.shape)} was given twice; each belongs to exactly one group "
                    f"(tied weights are one parameter: model.parameters() lists them once)"
                )
            if not p.is_floating_point():
                raise TypeError(
                    f"a parameter of shape {tuple(p.shape)} is {p.dtype}: holonom moves real floating-point tensors; "
                    f"hold real and imaginary parts as two parameters (torch.view_as_real)"
                )
            known.add(id(p))

    def _create_state(self, group: dict[str, Any], space: Constraint) -> list[tuple[Constraint, Landing]]:
        scheme = compile_word(group["scheme"])
        landings = []
        start = sum(len(g["params"]) for g in self.param_groups[:-1])
        for offset, p in enumerate(group["params"]):
            name = _name(group, offset, start + offset)
            space.check(p.detach(), name)
            block = space.view(p.detach())
            if p.numel():
                landings.append((space, space.land_(block, name)))
            state = self.state[p] = {}
            if not scheme.overdamped:
                state["momentum"] = torch.zeros_like(p.detach(), dtype=state_dtype(p))
            elif scheme.word == "M":
                state["last_noise"] = torch.zeros_like(p.detach(), dtype=state_dtype(p))
            self._read_slack(space, p)
        if scheme.thermostatted and group["params"]:
            first, tau = group["params"][0], group["temperature"]
            shape = tau.shape if isinstance(tau, Tensor) else ()
            self.state[first]["thermostat"] = torch.zeros(shape, dtype=state_dtype(first), device=first.device)
        return landings

    def _read_slack(self, space: Constraint, p: Tensor) -> None:
        """Set the slots to what puts the parameter's present value on the manifold."""
        state = self.state[p]
        for slot, value in zip(space.slots, space.slack(space.view(p.detach()).to(state_dtype(p))), strict=True):
            if slot == "slack_momentum" and "momentum" not in state:
                continue
            state[slot] = value

    def _reset_caches(self) -> None:
        self._cells: list[list[Cell]] | None = None
        self._versions: dict[Tensor, int] = {}
        self._skipped: dict[torch.device, Tensor] = {}
        self._warned_idle = False

    def _build_cells(self) -> list[list[Cell]]:
        """Parameters that move together: one space, dtype and device, and one shape where stacked."""
        cells: list[list[Cell]] = []
        index = 0
        for group, space in zip(self.param_groups, self._spaces, strict=True):
            buckets: dict[tuple[Any, ...], Cell] = {}
            for offset, p in enumerate(group["params"]):
                key: tuple[Any, ...] = (p.dtype, p.device)
                if space.stacks:
                    key += (space.view(p).shape,)
                cell = buckets.setdefault(key, Cell(space, [], [], []))
                cell.append(p, _name(group, offset, index), index)
                self._versions[p] = p._version
                index += 1
            cells.append(list(buckets.values()))
        return cells

    # ── the step ─────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of every group's word, from the gradients at the present positions."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        active = self._active_cells()
        with self._guarded(active):
            for group, cells in zip(self.param_groups, active, strict=True):
                self._advance(group, cells)
        self._note_versions(active)
        return loss

    @torch.no_grad()
    def synchronize(self) -> None:
        """Pay what a rotated word still owes: BAOAB's closing half kick, with the gradients at hand.

        Positions do not change; momenta become those of the textbook's step, as
        :meth:`temperatures` or an energy wants them. Call it after ``backward()`` at the present
        positions; the next step knows that the debt is paid.
        """
        active = self._active_cells()
        with self._guarded(active):
            for group, cells in zip(self.param_groups, active, strict=True):
                tail = compile_word(group["scheme"]).tail
                if tail and _truthy(group["owed"]) and cells:
                    self._run(group, cells, tail, 0.0, group["owed"], settles=False)
                    group["owed"] = 0.0

    def _active_cells(self) -> list[list[Cell]]:
        """The cells, less the parameters without a gradient; in-place edits are taken up here."""
        if self._cells is None:
            self._cells = self._build_cells()
        active = []
        for cells in self._cells:
            kept = []
            for cell in cells:
                have = [p.grad is not None for p in cell.params]
                if all(have):
                    kept.append(cell)
                elif any(have):
                    kept.append(cell.select(have))
            active.append(kept)
        if not any(active) and not self._warned_idle:
            self._warned_idle = True
            warnings.warn(
                "no parameter of this optimizer has a gradient, so the step changes nothing. Call backward() first; "
                "if the model's parameters were replaced after the optimizer was built, build it again.",
                stacklevel=3,
            )
        for cells in active:
            for cell in cells:
                guard.refuse_sparse(cell)
                for p in cell.params:
                    if p._version != self._versions[p]:
                        self._take_up_edit(cell.space, p)
        return active

    def _take_up_edit(self, space: Constraint, p: Tensor) -> None:
        if type(space) is Constraint:
            return
        space.land_(space.view(p.detach()), "an edited parameter")
        self._read_slack(space, p)
        cell = Cell(space, [p], ["an edited parameter"], [0])
        phase = cell.phase(self.state)
        if phase.p:
            space.project_(phase, phase.momenta)

    def _note_versions(self, active: list[list[Cell]]) -> None:
        for cells in active:
            for cell in cells:
                for p in cell.params:
                    self._versions[p] = p._version

    def _guarded(self, active: list[list[Cell]]) -> Any:
        step = max((g["step"] for g in self.param_groups), default=0)
        return guard.guarded(active, self.state, step, self._skipped, self.guard_gradients)

    def _advance(self, group: dict[str, Any], cells: list[Cell]) -> None:
        h = hyper.time_step(group)
        scheme = compile_word(group["scheme"])
        if cells and not (isinstance(h, float) and h == 0.0):
            owed = group["owed"]
            if scheme.starts_owing and not group["step"]:
                owed = h
            if _truthy(owed):
                program: tuple[Op, ...] = scheme.program
            else:
                program = tuple(Op(op.letter, head=op.head) for op in scheme.program if op.head)
            self._run(group, cells, program, h, owed)
            group["owed"] = h if scheme.tail else 0.0
        group["step"] += 1

    def _run(
        self, group: dict[str, Any], cells: list[Cell], program: tuple[Op, ...], h: Scalar, owed: Scalar,
        settles: bool = True,
    ) -> None:  # fmt: skip
        """Run a program on all cells of a group, letter E on their sum."""
        step, seed = group["step"], group["seed"]
        phys = hyper.physics(group)
        xi = self.state[group["params"][0]].get("thermostat") if group["params"] else None
        work = []
        for cell in cells:
            phase = cell.phase(self.state)
            force = cell.force(phase.p[0].dtype if phase.p else state_dtype(cell.params[0]), group)
            batch = Phase(*(stacked(xs) for xs in phase)) if cell.space.stacks else phase
            work.append((cell, phase, batch, stacked(force) if cell.space.stacks else force))

        draw = 0 if settles else -len(program)  # a synchronising letter's noise is not the next step's
        segments = _segments(program)
        for position, (ops, then_thermostat) in enumerate(segments):
            times = [_sum(op.tail, owed, op.head, h) for op in ops]
            numbers = [LETTERS[op.letter].numbers(t, phys, xi) for op, t in zip(ops, times, strict=True)]
            last = settles and position == len(segments) - 1
            for cell, _, batch, force in work:
                noises: list[Tensors] = []
                for i, op in enumerate(ops):
                    noise: Tensors = []
                    if is_noisy(op.letter, phys):
                        noise = cell.noise(self.state, op.letter in "LM", (seed, step, draw + i))
                        noise = stacked(noise) if cell.space.stacks else noise
                    noises.append(noise)
                word = "".join(op.letter for op in ops)
                cell.run(batch, word, force, numbers, noises, step, last, (group["foreach"], group["fuse"]))
            draw += len(ops)
            if then_thermostat is not None:
                assert xi is not None
                t = _sum(then_thermostat.tail, owed, then_thermostat.head, h)
                energy = sum_of_squares([m for _, _, batch, _ in work for m in batch.momenta], keep=xi.ndim)
                freedom = sum(cell.degrees_of_freedom() for cell in cells) / max(xi.numel(), 1)
                xi.add_(t * phys.coupling * (energy.to(xi) - freedom * phys.temperature))
        for cell, phase, batch, _ in work:
            if cell.space.stacks:
                for stack, tensors in zip(batch, phase, strict=True):
                    unstack_(stack, tensors)

    # ── looking at the system ────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise if a step was skipped on the device for a non-finite gradient; reads the device once."""
        skipped = sum(int(count) for count in self._skipped.values())
        self._skipped.clear()
        if skipped:
            raise NonFiniteGradientError(
                f"{skipped} step(s) since the last check() met a NaN or infinite gradient and were left out; the "
                f"weights are those of the last good step. Lower lr, clip gradients, or use a GradScaler."
            )

    def _report_skipped(self) -> None:
        try:
            self.check()
        except NonFiniteGradientError as error:
            warnings.warn(str(error), stacklevel=3)

    def _phases(self) -> list[list[tuple[Cell, Phase]]]:
        if self._cells is None:
            self._cells = self._build_cells()
        return [[(cell, cell.phase(self.state)) for cell in cells] for cells in self._cells]

    @torch.no_grad()
    def residuals(self) -> list[float]:
        """Per group: the largest constraint violation of the parameters as they are now.

        Relative (θ²+ξ²)/r² − 1 for circle and sphere, max|QᵀQ − I| for orthogonal, max|g| for level
        sets, 0 without a constraint.
        """
        self._report_skipped()
        return [
            max((float(cell.worst(phase, cell.space.residual)) for cell, phase in pairs), default=0.0)
            for pairs in self._phases()
        ]

    @torch.no_grad()
    def cotangencies(self) -> list[float]:
        """Per group: the largest |∇g·p|, how far a momentum points off its manifold."""
        return [
            max((float(cell.worst(phase, cell.space.cotangency)) for cell, phase in pairs if phase.p), default=0.0)
            for pairs in self._phases()
        ]

    @torch.no_grad()
    def temperatures(self) -> list[float]:
        """Per group: pᵀp / degrees of freedom, constraints subtracted; NaN for words without momentum.

        A rotated word still owes part of a kick; :meth:`synchronize` first for the textbook's momenta.
        """
        result = []
        for group, pairs in zip(self.param_groups, self._phases(), strict=True):
            freedom = sum(cell.degrees_of_freedom() for cell, _ in pairs)
            if compile_word(group["scheme"]).overdamped or not freedom:
                result.append(math.nan)
                continue
            energy = sum(float(sum_of_squares(phase.momenta)) for _, phase in pairs)
            result.append(energy / freedom)
        return result

    @torch.no_grad()
    def project_(self) -> None:
        """Move every parameter to the nearest point of its manifold: after averaging weights, say."""
        for group, space in zip(self.param_groups, self._spaces, strict=True):
            for p in group["params"]:
                self._take_up_edit(space, p)

    @torch.no_grad()
    def scale_momenta_(self, factor: float) -> None:
        """Multiply all momenta: √(τ'/τ) when the temperature jumps, −1 to run backwards, 0 to stand still."""
        for pairs in self._phases():
            for _, phase in pairs:
                scale_(phase.momenta, factor)

    # ── torch's contract ─────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        self._report_skipped()
        return super().state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint; constraints and schemes must be those it was made with."""
        checkpoint.check(self.param_groups, self.state, state_dict)
        super().load_state_dict(state_dict)
        checkpoint.restore_state(self.param_groups, self.state, state_dict)
        self._reset_caches()

    def __getstate__(self) -> dict[str, Any]:
        own = {"_spaces": self._spaces, "_default_space": self._default_space, "_landings": None}
        return {**super().__getstate__(), **own}

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


def _name(group: dict[str, Any], offset: int, index: int) -> str:
    names = group.get("param_names")
    return f"'{names[offset]}'" if names else f"parameter {index}"


def _warn_landed(landings: list[tuple[Constraint, Landing]] | None) -> None:
    moved = [(space, landing) for space, landing in landings or [] if landing.moved]
    if not moved:
        return
    parts = []
    for kind in dict.fromkeys(type(space).__name__ for space, _ in moved):
        own = [landing for space, landing in moved if type(space).__name__ == kind]
        total = [landing for space, landing in landings or [] if type(space).__name__ == kind]
        parts.append(
            f"{kind}: {sum(x.moved for x in own):,} of {sum(x.blocks for x in total):,} "
            f"by up to {max(x.distance for x in own):.3g}"
        )
    warnings.warn(
        "weights that did not satisfy their constraint were moved to the nearest point that does ("
        + "; ".join(parts)
        + "). holonom.init starts on the manifold.",
        stacklevel=4,
    )


def _segments(program: tuple[Op, ...]) -> list[tuple[tuple[Op, ...], Op | None]]:
    """Cut a program at its thermostat updates, which need all cells at once."""
    segments: list[tuple[tuple[Op, ...], Op | None]] = []
    ops: list[Op] = []
    for op in program:
        if op.letter == "E":
            segments.append((tuple(ops), op))
            ops = []
        else:
            ops.append(op)
    return [*segments, (tuple(ops), None)]


def _truthy(owed: Scalar) -> bool:
    return isinstance(owed, Tensor) or owed != 0.0


def _sum(tail: float, owed: Scalar, head: float, h: Scalar) -> Scalar:
    if not tail:
        return head * h
    return tail * owed + head * h if head else tail * owed
