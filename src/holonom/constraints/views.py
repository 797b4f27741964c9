"""Views: how a parameter is read as matrices, one row for every output."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from .._step.integrate import Scalar
from ..errors import ConstraintError
from .base import Constraint

NAMES = ("auto", None, "conv", "batch", "batch conv")
PER = ("row", "column", "matrix", "head", "block")
S = TypeVar("S", bound="Viewed")


@dataclass(frozen=True)
class View:
    """Reads a parameter as (\\*batch, [blocks,] out/blocks, in·kh·kw).

    The first ``batch`` dimensions stay. Of the others, number ``output`` comes first; the rest is flattened in order.

    >>> View()                      # a matrix, or a convolution (out, in, kh, kw)
    >>> View(output=1)              # a transposed convolution (in, out, kh, kw)
    >>> View(blocks=3)              # query, key and value packed into one matrix
    >>> View(batch=1, output=1)     # an ensemble's transposed convolutions

    Args:
        batch: how many leading dimensions count matrices (the replicas of an ensemble).
        output: which of the remaining dimensions counts outputs.
        blocks: the outputs are those of so many matrices of one size, each constrained by itself.
    """

    batch: int = 0
    output: int = 0
    blocks: int = 1

    def __post_init__(self) -> None:
        for name, least in (("batch", 0), ("output", 0), ("blocks", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConstraintError(f"View: {name} must be a whole number of at least {least}, got {value!r}")

    def named(self, ndim: int) -> View | str | None:
        """The name of this view of a parameter with ``ndim`` dimensions, or the view itself if it has none."""
        if self.output or self.blocks > 1:
            return self
        if ndim <= self.batch + 2:
            return "batch" if self.batch else None
        return {0: "conv", 1: "batch conv"}.get(self.batch, self)

    def read(self, q: Tensor) -> Tensor:
        """The matrices; a view of q's memory where its strides allow one, else a copy."""
        return self._arrange(q).flatten(self._columns)

    def write_(self, q: Tensor, matrices: Tensor) -> None:
        """The inverse of :meth:`read`."""
        x = self._arrange(q)
        x.copy_(matrices.reshape(x.shape))

    def outputs(self, q: Tensor) -> int:
        """The rows of a matrix."""
        return q.shape[self.batch + self.output] // self.blocks

    def is_view(self, q: Tensor) -> bool:
        """Whether :meth:`read` gives a view of q's memory."""
        x = self._arrange(q)
        try:
            x.view(*x.shape[: self._columns], x.shape[self._columns :].numel())
        except RuntimeError:
            return False
        return True

    def contiguous(self, x: Tensor) -> Tensor:
        """The same tensor with its matrices one after the other in memory, row by row."""
        where = self.batch + self.output
        return x.movedim(where, self.batch).contiguous().movedim(self.batch, where)

    def check(self, q: Tensor, place: str) -> None:
        """Raise :class:`ConstraintError` if this view cannot read the tensor; ``place`` names it."""
        least = self.batch + max(2, self.output + 1)
        if q.ndim < least:
            raise ConstraintError(
                f"{place}: view={self} needs at least {least} dimensions, the shape is {tuple(q.shape)}"
            )
        outputs = q.shape[self.batch + self.output]
        if outputs % self.blocks:
            raise ConstraintError(
                f"{place} of shape {tuple(q.shape)}: {outputs} outputs are not {self.blocks} blocks of one size; "
                f"blocks must divide the number of outputs, in dimension {self.batch + self.output}"
            )

    @property
    def _columns(self) -> int:
        """The dimension of the matrices' columns."""
        return self.batch + (self.blocks > 1) + 1

    def _arrange(self, q: Tensor) -> Tensor:
        """(\\*batch, [blocks,] outputs, …) before the rest is flattened; always a view."""
        x = q.movedim(self.batch + self.output, self.batch) if self.output else q
        if self.blocks > 1:
            sizes = (self.blocks, x.shape[self.batch] // self.blocks)
            x = x.unflatten(self.batch, sizes)  # type: ignore[no-untyped-call]
        return x


CONVOLUTIONS = {"conv": View(), "batch conv": View(1)}


class Viewed(Constraint):
    """A space of matrices, or of parts of them: ``block_view`` says how parameters are read as such.

    "auto" is for presets and :func:`holonom.partition`. They know the modules, and replace it by the view of each
    parameter (:meth:`with_view`). A parameter without a module is read as it is. If it has more than two dimensions and
    ``per`` was given, leading ones count matrices; with the default ``per`` it is refused.

    ``per`` is the part that is constrained by itself: a "row" or "column", the whole "matrix", a "head" of attention,
    or a "block", a matrix that is packed with others into one parameter.
    """

    block_view: View | str | None
    reading: View | None  # of a block_view by its name; None reads a parameter as it is
    per: str = "block"
    block_dims = 1  # of the view

    @property
    def per_block(self) -> Scalar | None:
        """One number for every block, or for all of them."""
        return None

    def _set_per(self, per: str, known: tuple[str, ...]) -> None:
        if per not in known:
            raise ConstraintError(
                f"{type(self).__name__}: per must be one of {', '.join(map(repr, known))}, got {per!r}"
            )
        self.per = per

    def _set_view(self, view: View | str | None) -> None:
        if not isinstance(view, View) and view not in NAMES:
            names = ", ".join(map(repr, NAMES))
            raise ConstraintError(f"{type(self).__name__}: view must be one of {names} or a View, got {view!r}")
        if isinstance(view, View):
            view = replace(view, blocks=self.blocks_of(view))
        self.block_view = view
        self.reading = view if isinstance(view, View) else CONVOLUTIONS.get(view or "")

    def blocks_of(self, view: View) -> int:
        """How many of a view's blocks the constraint tells apart."""
        return view.blocks if self.per in ("head", "block") else 1

    def with_view(self: S, view: View | str | None, ndim: int | None = None) -> S:
        if self.block_view != "auto":
            return self
        return self.read_by(view, ndim)

    def read_by(self: S, view: View | str | None, ndim: int | None = None) -> S:
        """The space with another view; ``ndim`` as in :meth:`with_view`."""
        other = copy.copy(self)
        other._set_view(view)
        if ndim is not None and isinstance(other.block_view, View) and self.per != "head":
            other._set_view(other.block_view.named(ndim))
        return other

    def matrices(self, q: Tensor) -> Tensor:
        """(…, outputs, inputs), a view of q's memory where its strides allow one, else a copy."""
        return q if self.reading is None else self.reading.read(q)

    def view(self, q: Tensor) -> Tensor:
        return self.matrices(q)

    def write_(self, q: Tensor, block: Tensor) -> None:
        if self.reading is None:
            q.copy_(block)
        else:
            self.reading.write_(q, block)

    def is_view(self, q: Tensor) -> bool:
        return self.reading is None or self.reading.is_view(q)

    def readable(self, x: Tensor) -> Tensor:
        if self.is_view(x):
            return x
        return x.contiguous() if self.reading is None else self.reading.contiguous(x)

    def check_view(self, q: Tensor, name: str) -> None:
        """Raise :class:`ConstraintError` if the view cannot read this tensor."""
        place = f"{type(self).__name__} on {name}"
        if isinstance(self.block_view, View):
            self.block_view.check(q, place)
        elif self.per == "head":
            raise ConstraintError(
                f"{place} of shape {tuple(q.shape)}: per='head' needs the number of heads: view=View(blocks=n) for n "
                f"heads along the outputs, View(output=1, blocks=n) along the inputs; holonom.partition(model, …) has "
                f"it from attention modules"
            )
        elif self.block_view in ("auto", None) and q.ndim > 2 and self.per == type(self).per:
            raise ConstraintError(
                f"{place} of shape {tuple(q.shape)}: say how to read more than two dimensions: view='conv' for "
                f"(out, in·kh·kw), view='batch' for a stack of matrices, view='batch conv' for a stack of "
                f"convolutions, view=View(output=1) for a transposed convolution (in, out, kh, kw), or per='matrix', "
                f"which makes each matrix of a stack a block; "
                f"holonom.partition(model, …) and presets that are given the model read it from the layers"
            )
        elif q.ndim < (least := {"conv": 3, "batch": 3, "batch conv": 4}.get(self.block_view or "", 0)):
            raise ConstraintError(
                f"{place}: view={self.block_view!r} needs at least {least} dimensions, the shape is {tuple(q.shape)}"
            )

    # ── tensors that are spread over ranks ───────────────────────────────────────────────────────

    def matrix_reach(self, shape: Sequence[int], per: str) -> tuple[int, ...]:
        """The reach of a "row", a "column" or the whole of a matrix (of a block, where several are packed)."""
        view, last = self.reading, len(shape) - 1
        if view is None:  # leading dimensions count matrices; a vector is one row
            inside = {"row": {last}, "column": {last - 1}}.get(per, {last, last - 1})
            return tuple(size if d in inside else 1 for d, size in enumerate(shape))
        where = view.batch + view.output
        outputs = 1 if per == "row" else shape[where] // view.blocks
        inputs = [1 if d < view.batch or per == "column" else size for d, size in enumerate(shape)]
        return (*inputs[:where], outputs, *inputs[where + 1 :])

    def by_dimension(self, per_block: Tensor, counts: Sequence[int]) -> Tensor:
        """One number a block, in the order of blocks, with a dimension for each of the parameter's: ``counts``."""
        view, order = self.reading, list(counts)
        if view is None or not view.output:
            return per_block.reshape(order)
        order.insert(view.batch, order.pop(view.batch + view.output))
        return per_block.reshape(order).movedim(view.batch, view.batch + view.output)

    def by_block(self, grid: Tensor) -> Tensor:
        """The inverse of :meth:`by_dimension`, as a vector."""
        view = self.reading
        if view is not None and view.output:
            grid = grid.movedim(view.batch + view.output, view.batch)
        return grid.reshape(-1)

    def on_shard(self: S, shape: Sequence[int], first: Sequence[int], local: Sequence[int]) -> S:
        """The view of the shard, which packs as many blocks as it has, with their sizes."""
        view, other = self.reading, self
        reach = self.reach(shape) or tuple(shape)
        if view is not None and view.blocks > 1:
            where = view.batch + view.output
            other = self.read_by(replace(view, blocks=max(1, blocks_along(local[where], reach[where]))))
        if not isinstance(self.per_block, Tensor) or not self.per_block.ndim or not all(local):
            return other
        own = self.own_blocks(self.per_block, shape, first, local)
        leading = other.view(own.new_empty(tuple(local), device="meta")).shape[: -self.block_dims]
        found: S = other.held_at(own.reshape(leading))  # type: ignore[assignment]
        return found

    def own_blocks(self, per_block: Tensor, shape: Sequence[int], first: Sequence[int], local: Sequence[int]) -> Tensor:
        """Of one number a block, those of the blocks that a part of the tensor touches, as a vector in their order."""
        reach = self.reach(shape) or tuple(shape)
        each = list(zip(shape, reach, first, local, strict=True))
        grid = self.by_dimension(per_block, [blocks_along(size, g) for size, g, *_ in each])
        own = tuple(slice(a // g, -(-(a + n) // g)) if g and n else slice(0, 0) for _, g, a, n in each)
        return self.by_block(grid[own])


def blocks_along(size: int, reach: int) -> int:
    """How many blocks there are along a dimension."""
    return size // reach if reach else 0
