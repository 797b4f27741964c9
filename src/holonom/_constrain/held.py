"""The handle of a constrained optimizer: its hooks, its diagnostics and its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._step.buckets import SIZES
from .._torch import full_precision, step_hooks
from ..constraints import Sphere
from ..errors import ConstraintError, ProjectionError
from . import saved
from .buckets import Bucket, make_buckets
from .claims import Claim, has_nearest, is_equality, land_
from .decay import dropped, refuse_decay
from .momenta import project_momenta_, warn_without_momenta

ALLOWED = 1e-4  # violation of a single- or double-precision weight that rounding and projections explain


class Turned(NamedTuple):
    """By how much blocks turned, in radians."""

    mean: float
    largest: float


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
        self._buckets: list[Bucket] | None = None
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
        return {**self.__dict__, "_handles": None if self._handles is None else [], "_buckets": None}

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
        self._handles, self._buckets = None, None

    def _unhook(self) -> None:
        for handle in self._handles or ():
            handle.remove()

    def _refuse_removed(self) -> None:
        if self._handles is None:
            raise RuntimeError("this handle was removed: call holonom.constrain again to hold the weights")

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for bucket in self._located():
            rate = optimizer.param_groups[bucket.group].get("weight_decay", 0)
            if not isinstance(rate, Tensor) and rate and is_equality(bucket.space):
                self._refuse_decay()
        with full_precision():
            for bucket in self._located():
                bucket.start()

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        errors: list[Exception] = []
        with full_precision():
            for bucket in self._located():
                group = optimizer.param_groups[bucket.group]
                try:
                    bucket.finish(group.get("lr", 0.0), self._dropped(bucket, group))
                except (ConstraintError, ProjectionError) as error:  # the others must not be left where they are
                    errors.append(error)
        self._steps += 1
        projects = self._options["momentum"] == "project"
        if projects and not project_momenta_(optimizer, self._claims) and self._steps == 1:
            warn_without_momenta(optimizer)
        if errors:
            raise errors[0]

    def _dropped(self, bucket: Bucket, group: dict[str, Any]) -> Any:
        return dropped(group, self._options["decay"]) if is_equality(bucket.space) else 0.0

    def _refuse_decay(self) -> None:
        refuse_decay(self.optimizer, self._claims, self.rules, self._options["decay"])

    def _located(self) -> list[Bucket]:
        """The buckets, made again when parameters are in other groups."""
        groups = self.optimizer.param_groups
        for bucket in self._buckets or ():
            own = groups[bucket.group]["params"] if bucket.group < len(groups) else ()
            if bucket.place >= len(own) or own[bucket.place] is not bucket.parameters[0]:
                self._buckets = None
                break
        if self._buckets is None:
            options = self._options
            always = options["track"] or options["update"] != "plain"
            keeps = [always or options["decay"] == "drop" for _ in groups]
            self._buckets = make_buckets(self._claims, self.optimizer, options["update"], keeps)
        return self._buckets

    # ── diagnostics ──────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    @full_precision()
    def residuals(self) -> dict[str, float]:
        """The largest violation under every rule, of the weights as they are now.

        Relative |‖w‖²/r² − 1| on spheres, max|QᵀQ/c² − I| for orthogonal weights; of bounds how far outside, 0 inside.
        Half-precision weights show their rounding.
        """
        self._refuse_removed()
        found = dict.fromkeys(self.rules, 0.0)
        for claim in self._claims:
            if claim.parameter.numel():
                label = self.rules[claim.rule]
                found[label] = _largest(found[label], float(claim.space.residual(claim.phase())))
        return found

    @torch.no_grad()
    def angles(self) -> dict[str, Turned]:
        """By how much the blocks under every rule turned from before the last step until now, in radians.

        A block is a sphere's, or a matrix on other spaces of matrices; else the tensor. ``update="plain"`` keeps the
        weights from before a step only with ``track=True``.
        """
        self._refuse_removed()
        if self._options["update"] == "plain" and not self._options["track"]:
            raise RuntimeError("update='plain' keeps no weights from before a step: call constrain(..., track=True)")
        if not self._steps:
            raise RuntimeError("angles() are those of the last step, and there was none since the optimizer was built")
        found: dict[str, list[Tensor]] = {label: [] for label in self.rules}
        for bucket in self._located():
            dims = 1 if isinstance(bucket.space, Sphere) else 2 if bucket.space.traits.stacked else 0
            for old, new in zip(bucket.before, bucket.blocks(), strict=True):
                found[self.rules[bucket.claims[0].rule]].append(_angles(old, new, dims or new.ndim))
        joined = {label: torch.cat([a.cpu() for a in own]) for label, own in found.items() if own}
        return {label: Turned(float(a.mean()), float(a.max())) for label, a in joined.items()}

    def check(self, optimizer: Any = None) -> None:
        """Raise if steps no longer keep the constraints, or if weights are off their spaces.

        Args:
            optimizer: the one that the loop steps, where it may be another than the one that was constrained: a copy
                has no hooks. Wrappers that call it are looked through.
        """
        self._refuse_removed()
        inner = optimizer
        while inner is not None and inner is not self.optimizer:
            inner = getattr(inner, "optimizer", getattr(inner, "_optimizer", None))
        if optimizer is not None and inner is None:
            raise RuntimeError(
                "this optimizer is not the one that was constrained: deepcopy and pickle leave hooks behind. Step "
                "held.optimizer, or call constrain with the copy and its model, and load held.state_dict()"
            )
        if not {self._before, self._after} <= set(step_hooks(self.optimizer)):
            raise RuntimeError(
                f"the step hooks of {type(self.optimizer).__name__} are gone, so that its steps leave the constraints: "
                f"copies have none, and others may have removed them. Call held.attach()"
            )
        counts = [bucket.lost for bucket in self._located() if bucket.lost is not None]
        if lost := sum(int(count) for count in counts):
            for count in counts:
                count.zero_()
            raise ProjectionError(
                f"{lost} projection(s) since the last check() had no root, and left their matrices as they were before "
                f"the step: the steps were too large. Lower lr"
            )
        for label, residual in self.residuals().items():
            own = [c for c in self._claims if self.rules[c.rule] == label]
            allowed = max(_allowed(c) for c in own)
            if not residual <= allowed:
                raise ProjectionError(
                    f"weights under the rule {label} violate {own[0].text} by {residual:.2g}: something else than "
                    f"this optimizer's step has written them, or a step was too large. Call held.project_()"
                )

    @torch.no_grad()
    @full_precision()
    def project_(self) -> None:
        """Move every held weight to the nearest point of its space: after loading weights, say."""
        self._refuse_removed()
        land_(self._claims)

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """The sizes taken from initial weights, and the float32 weights of half-precision ones, by name.

        ``optimizer.state_dict()`` has them too, as ``"holonom"``: a checkpoint of the optimizer is enough.
        """
        self._refuse_removed()
        return saved.state_of(self._claims)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; weights are loaded into the model, before or after."""
        self._refuse_removed()
        saved.check(self._claims, state_dict)
        saved.load_(self._claims, state_dict)
        self._buckets = None

    def _save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict[saved.KEY] = saved.merged(state_dict.get(saved.KEY), saved.state_of(self._claims))

    def _check_saved(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._loading = state_dict.get(saved.KEY)
        if self._loading is None:
            saved.warn_missing(self._claims)
        else:
            saved.check(self._claims, self._loading)

    def _load(self, optimizer: Optimizer) -> None:
        if self._loading is not None:
            saved.load_(self._claims, self._loading)
        self._loading, self._buckets = None, None

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


def _allowed(claim: Claim) -> float:
    """The violation that rounding, a tolerance of the space, or a search for its points explains."""
    space = claim.space
    if claim.is_narrow or not has_nearest(space) or getattr(space, "iterations", None) is not None:
        return space.lost
    return max(ALLOWED, 2 * (getattr(space, "tolerance", None) or 0.0))


def _largest(a: float, b: float) -> float:
    return b if b != b or b > a else a


def _angles(old: Tensor, new: Tensor, dims: int) -> Tensor:
    """2·atan2(‖u − v‖, ‖u + v‖) of unit vectors, which has all digits of small angles."""
    u, v = (x.flatten(-dims).double() for x in (old, new))
    u, v = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (u, v))
    apart, along = (torch.linalg.vector_norm(x, dim=-1) for x in (u - v, u + v))
    return torch.nan_to_num(2 * torch.atan2(apart, along), nan=0.0).reshape(-1)
