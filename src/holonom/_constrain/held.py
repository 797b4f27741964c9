"""The handle of a constrained optimizer: its hooks, its diagnostics and its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._sharding.collectives import reduced
from .._step.buckets import SIZES
from .._step.integrate import Scalar
from .._torch import full_precision, step_hooks
from ..errors import ProjectionError
from . import diagnostics, saved
from .claims import Claim, has_nearest, is_equality, ranks_of
from .decay import dropped, refuse_decay
from .diagnostics import Turned
from .landing import land_
from .momenta import project_momenta_, warn_without_momenta
from .plan import Plan

ALLOWED = 1e-4  # violation of a single- or double-precision weight that rounding and projections explain


class Held:
    """What :func:`holonom.constrain` returns: the optimizer's steps keep the constraints until this is removed.

    Copies of an optimizer (``copy.deepcopy``, ``pickle``) have no hooks. A copy of the handle that is made together
    with its optimizer gets them back by :meth:`attach`.
    """

    def __init__(
        self, optimizer: Optimizer, claims: Sequence[Claim], labels: Sequence[str], options: dict[str, Any]
    ) -> None:
        self.optimizer = optimizer
        self.rules = list(labels)
        self._claims = list(claims)
        self._options = options
        self._handles: list[Any] | None = []
        self._plan: Plan | None = None
        self._steps = 0
        self._loading: saved.State | None = None

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        lines = [f"Held ({type(self.optimizer).__name__}, {options})"]
        for number, label in enumerate(self.rules):
            own = [claim for claim in self._claims if claim.rule == number]
            spaces = dict.fromkeys(claim.text for claim in own)
            lines += [f"  {label}: {len(own)} tensors, {sum(c.parameter.numel() for c in own):,} parameters"]
            lines += [f"    {space}" for space in spaces]
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": None if self._handles is None else [], "_plan": None}

    # ── hooks ────────────────────────────────────────────────────────────────────────────────────

    def attach(self) -> None:
        """Put the hooks on the optimizer, if they are not there: after a deepcopy, or after others removed them."""
        self._refuse_removed()
        self._unhook()
        opt = self.optimizer
        self._handles = [
            opt.register_step_pre_hook(self._before),
            opt.register_step_post_hook(self._after),
            opt.register_state_dict_post_hook(self._save),
            opt.register_load_state_dict_pre_hook(self._check_saved),
            opt.register_load_state_dict_post_hook(self._load),
        ]

    def remove(self) -> None:
        """Take the hooks off the optimizer. Its weights are free from now on."""
        self._unhook()
        self._handles, self._plan = None, None

    def _unhook(self) -> None:
        for handle in self._handles or ():
            handle.remove()

    def _refuse_removed(self) -> None:
        if self._handles is None:
            raise RuntimeError("this handle was removed: call holonom.constrain again to hold the weights")

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._steps:
            self._forget_landings()
        for bucket in self._located().located:
            rate = optimizer.param_groups[bucket.group].get("weight_decay", 0)
            if not isinstance(rate, Tensor) and rate and is_equality(bucket.space):
                self._refuse_decay()
        with full_precision():
            self._located().start()

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with full_precision():
            errors = self._located().finish(self._rates)
        self._steps += 1
        projects = self._options["momentum"] == "project"
        if projects and not project_momenta_(optimizer, self._claims) and self._steps == 1:
            warn_without_momenta(optimizer)
        if errors:
            raise errors[0]

    def _rates(self, bucket: Any) -> tuple[Any, Any]:
        """The lr of a bucket's group, and the part of it that is a weight decay to be left out."""
        group = self.optimizer.param_groups[bucket.group]
        drops = dropped(group, self._options["decay"]) if is_equality(bucket.space) else 0.0
        return one_number(group.get("lr", 0.0)), one_number(drops)

    def _refuse_decay(self) -> None:
        refuse_decay(self.optimizer, self._claims, self.rules, self._options["decay"])

    def _located(self) -> Plan:
        """What moves together, made again when parameters are in other groups."""
        if self._plan is None or not self._plan.is_valid:
            options = self._options
            self._plan = Plan(
                self._claims, self.optimizer, options["update"], options["decay"] == "drop", options["track"]
            )
        return self._plan

    # ── diagnostics ──────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    @full_precision()
    def residuals(self) -> dict[str, float]:
        """The largest violation under every rule, of the weights as they are now.

        Relative |‖w‖²/r² − 1| on spheres, max|QᵀQ/c² − I| for orthogonal weights; of bounds how far outside, 0 inside.
        Half-precision weights show their rounding.
        """
        self._refuse_removed()
        return diagnostics.residuals(self._claims, self.rules)

    @torch.no_grad()
    def angles(self) -> dict[str, Turned]:
        """By how much the blocks under every rule turned from before the last step until now, in radians.

        A block is a sphere's, or a matrix on other spaces of matrices; else the tensor. ``update="plain"`` keeps the
        weights from before a step only with ``track=True``.
        """
        self._refuse_removed()
        if self._options["update"] == "plain" and not self._options["track"]:
            raise RuntimeError("update='plain' keeps no weights from before a step: call constrain(..., track=True)")
        plan = self._located()
        if not plan.stepped:
            raise RuntimeError(
                "angles() are those of the last step, and there was none since the handle was built, copied or loaded, "
                "or since parameters changed groups"
            )
        return diagnostics.angles(plan, self.rules)

    def check(self, optimizer: Any = None) -> None:
        """Raise if steps no longer keep the constraints, or if weights are off their spaces.

        Args:
            optimizer: the one that the loop steps, where it may be another than the one that was constrained: a copy
                has no hooks. Wrappers that call it, and :func:`holonom.together`, are looked through.
        """
        self._refuse_removed()
        if optimizer is not None and not _steps(optimizer, self.optimizer):
            raise RuntimeError(
                "this optimizer is not the one that was constrained: deepcopy and pickle leave hooks behind. Step "
                "held.optimizer, or call constrain with the copy and its model, and load held.state_dict()"
            )
        if not {self._before, self._after} <= set(step_hooks(self.optimizer)):
            raise RuntimeError(
                f"the step hooks of {type(self.optimizer).__name__} are gone, so that its steps leave the constraints: "
                f"copies have none, and others may have removed them. Call held.attach()"
            )
        if lost := self._lost():
            raise ProjectionError(
                f"{lost} projection(s) since the last check() had no root, and left their matrices as they were before "
                f"the step: the steps were too large. Lower lr"
            )
        for label, residual in self.residuals().items():
            own = [c for c in self._claims if self.rules[c.rule] == label]
            allowed = max(_allowed(c) for c in own)
            if math.isnan(residual):
                raise ProjectionError(
                    f"weights under the rule {label} hold NaN or infinity: load good ones, and lower lr or clip "
                    f"gradients"
                )
            if not residual <= allowed:
                raise ProjectionError(
                    f"weights under the rule {label} violate {own[0].text} by {residual:.2g}: something else than "
                    f"this optimizer's step has written them, or a step was too large. Call held.project_()"
                )

    def _lost(self) -> int:
        """How many projections had no root since the last call, on all ranks."""
        counts = self._located().lost
        count = sum(int(one) for one in counts)
        for one in counts:
            one.zero_()
        groups = ranks_of(self.optimizer)
        if groups:
            total = torch.tensor([count], dtype=torch.int64, device=self._claims[0].tensor.device)
            count = int(reduced([(total, groups)])[0])
        return count

    @torch.no_grad()
    @full_precision()
    def project_(self) -> None:
        """Move every held weight to the nearest point of its space: after loading weights, say."""
        self._refuse_removed()
        land_(self._claims, ranks_of(self.optimizer))
        self._forget_landings()

    def _forget_landings(self) -> None:
        for claim in self._claims:
            claim.landed = None

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The sizes taken from initial weights, and the float32 weights of half-precision ones, by name.

        ``optimizer.state_dict()`` has them too, as ``"holonom"``, and so have the optimizer's states that
        ``torch.distributed.checkpoint`` takes and loads: a checkpoint of the optimizer is enough.
        """
        self._refuse_removed()
        return saved.state_of(self._claims)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; weights are loaded into the model, before or after.

        Of weights that were loaded before :func:`holonom.constrain` was called, this undoes what that moved them by.
        """
        self._refuse_removed()
        saved.check(self._claims, state_dict)
        saved.load_(self._claims, state_dict)
        self._plan = None

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        own = saved.state_of(self._claims)
        state_dict[saved.KEY] = saved.merged(state_dict.get(saved.KEY), own)
        saved.into_groups_(state_dict["param_groups"], optimizer.param_groups, own, self._claims)

    def _check_saved(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        state_dict = saved.out_of_groups(state_dict)
        self._loading = state_dict.get(saved.KEY)
        if self._loading is None:
            saved.warn_missing(self._claims)
        else:
            saved.check(self._claims, self._loading)
        return state_dict

    def _load(self, optimizer: Optimizer) -> None:
        if self._loading is not None:
            saved.load_(self._claims, self._loading)
        self._loading, self._plan = None, None

    # ── what holonom.project_(copy, like=held) reads ─────────────────────────────────────────────

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The held parameters and their names, a group a rule."""
        groups: list[dict[str, Any]] = [{"params": [], "param_names": [], "name": label} for label in self.rules]
        for claim in self._claims:
            groups[claim.rule]["params"].append(claim.parameter)
            groups[claim.rule]["param_names"].append(claim.name)
        return groups

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The sizes of every held parameter."""
        return {claim.parameter: {SIZES: claim.sizes} for claim in self._claims}

    @property
    def _spaces(self) -> dict[Tensor, Any]:
        return {claim.parameter: claim.space for claim in self._claims}


def one_number(x: Scalar) -> Scalar:
    """torch's optimizers take rates of any shape with one entry, which would be broadcast over blocks."""
    return x.reshape(()) if isinstance(x, Tensor) and x.numel() == 1 else x


def _steps(optimizer: Any, wanted: Optimizer) -> bool:
    """Whether an optimizer is the wanted one, wraps it, or has it as a part."""
    inner = getattr(optimizer, "optimizer", getattr(optimizer, "_optimizer", None))
    parts = [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]
    return optimizer is wanted or any(_steps(part, wanted) for part in parts)


def _allowed(claim: Claim) -> float:
    """The violation that rounding, a tolerance of the space, or a search for its points explains."""
    space, q = claim.space, claim.tensor
    if claim.is_narrow and claim.searches and claim.master is not None and torch.equal(claim.master.to(q.dtype), q):
        return math.inf  # rounded from weights that a step found; how much a user's function sees of that is not known
    if claim.is_narrow or not has_nearest(space) or getattr(space, "iterations", None) is not None:
        return space.lost
    return max(ALLOWED, 2 * (getattr(space, "tolerance", None) or 0.0))
