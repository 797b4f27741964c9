"""Places: every parameter of a model, where it sits, what it is, and how a constraint should read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..constraints import Sphere
from ..constraints.views import View, Viewed
from ..errors import PartitionError
from .heads import heads_of
from .roles import (
    CONVOLUTIONS,
    EMBEDDINGS,
    LAYERLESS,
    TRANSPOSED,
    Line,
    Step,
    attention_blocks,
    blocks_of,
    check_patterns,
    groups_of,
    is_inside,
    is_named_head,
    is_transposed,
    is_transposed_linear,
    own_parameters,
    role_of,
)

Roles = Mapping[str, str]
Blocks = Mapping[str, int]


@dataclass(frozen=True)
class Place:
    """Where a parameter sits and what it is.

    Layers are counted by modules that own a weight of two or more dimensions (positions and norms aside), in the
    order the model registers them; a module without one (a norm) belongs to the layer before it. The leading dimension
    of an :class:`holonom.Ensemble` counts as none: ``ndim`` is that of one replica's parameter.

    Args:
        name: the parameter's.
        parameter: the tensor.
        module: the one that owns it.
        layer: its number, from 0.
        layers: how many there are.
        batch_dims: leading dimensions that count replicas.
        role: one of :data:`holonom.partitions.ROLES`.
        blocks: matrices packed along its outputs (queries, keys and values; the gates of an LSTM; groups); 0 if their
            sizes are not known.
        reads_input: it belongs to an embedding, or to the first layer, unless that is attention or recurrent.
        gives_output: it belongs to a head.
        direct: it is the tensor that its module uses, not one that a parametrization makes that tensor of.
        heads: the view whose blocks are attention heads; None if no module says how many there are.
    """

    name: str
    parameter: nn.Parameter
    module: nn.Module
    layer: int
    layers: int
    batch_dims: int = 0
    role: str = "feed-forward"
    blocks: int = 1
    reads_input: bool = False
    gives_output: bool = False
    direct: bool = True
    heads: View | None = None

    @property
    def ndim(self) -> int:
        """Dimensions of the parameter, those of replicas not counted."""
        return self.parameter.ndim - self.batch_dims

    @property
    def view(self) -> View:
        """How a constraint should read the parameter: :func:`view_of` this place."""
        return view_of(self)


def view_of(place: Place, space: Viewed | None = None) -> View:
    """How a constraint should read a parameter as matrices (out, in), by its module and role, and by the ``per`` of
    the constraint if one is given.

    Transposed convolutions and the ``Conv1D`` of GPT-2 have their outputs in the second dimension. Of a tensor of more
    than two dimensions in a module of unknown type, leading dimensions count matrices where ``per`` was chosen;
    otherwise it is refused, because many readings are plausible.
    """
    per = None if space is None else space.per
    if per == "head":
        if place.heads is None:
            raise PartitionError(
                f"{place.name!r}: per='head' needs the number of attention heads, which its module "
                f"{type(place.module).__name__} (role {place.role!r}) does not say. Write blocks={{{place.name!r}: n}} "
                f"for n heads, or another per, such as 'matrix'"
            )
        return place.heads
    shape = place.parameter.shape[place.batch_dims :]
    second = place.role == "transposed convolution" or is_transposed(place.module)
    groups = groups_of(place.module)
    if second and groups > 1 and isinstance(space, Sphere) and per in ("matrix", "block"):
        return View(place.batch_dims, 0, groups)  # a norm needs no order of the entries
    if second and groups > 1:
        raise PartitionError(
            f"{place.name!r} of shape {tuple(shape)} is a transposed convolution with {groups} groups, which "
            f"no view reads group by group; leave it free with roles={{{place.name!r}: 'other'}}"
        )
    if second or is_transposed_linear(place.module):
        return View(place.batch_dims, 1, place.blocks or 1)
    ones = next((i for i, size in enumerate(shape[:-2]) if size != 1), max(0, len(shape) - 2))  # leading ones
    known = _is_read_by_type(place.module, place.role)
    if len(shape) - ones > 2 and not known:
        if space is not None and per != type(space).per:
            return View(place.batch_dims + len(shape) - 2, 0, place.blocks or 1)
        raise PartitionError(
            f"{place.name!r} of shape {tuple(shape)} has more than two dimensions and its module "
            f"{type(place.module).__name__} does not say how to read them. Write roles={{{place.name!r}: "
            f"'convolution'}} for (out, in, …), roles={{{place.name!r}: 'other'}} to leave it free, or claim it by a "
            f"rule of holonom.partition with a view of its own, such as Orthogonal(view='batch') for stacked matrices, "
            f"or with per='matrix', which makes every matrix of a stack a block"
        )
    return View(place.batch_dims + (0 if known else ones), 0, place.blocks or 1)


def _is_read_by_type(module: nn.Module, role: str) -> bool:
    """Whether more than two dimensions are (out, in, …)."""
    return isinstance(module, (*CONVOLUTIONS, nn.Bilinear)) or role.endswith("convolution")


@dataclass
class _Found:
    name: str
    parameter: nn.Parameter
    owners: list[Line]
    role: str
    tensor: str  # the name of the module's tensor
    direct: bool
    layer: int = 0
    claimed: bool = False  # the role is the user's

    @property
    def line(self) -> Line:
        return self.owners[0]


def locate(model: nn.Module, roles: Roles | None = None, blocks: Blocks | None = None) -> list[Place]:
    """Every parameter of a model and where it sits; shared parameters count once.

    Args:
        model: the network.
        roles: name patterns and the roles of what they match, before all rules; the first that matches decides.
        blocks: name patterns and how many matrices are packed along the outputs of what they match.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"roles and layers are a model's: give the model itself, not a {type(model).__name__}")
    for argument, given in (("roles", roles), ("blocks", blocks)):
        if not isinstance(given or {}, Mapping):
            raise TypeError(f"{argument} must be a dict from name patterns, got {given!r}")
    batch_dims = getattr(model, "batch_dims", 0)
    found, last = _find(model, batch_dims, roles or {})
    check_patterns(roles or {}, blocks or {}, [one.name for one in found])
    matrices = [one for one in found if one.parameter.ndim - batch_dims >= 2 and one.role not in LAYERLESS]
    inside = attention_blocks([one.line for one in matrices], [one.role for one in matrices])
    for one in matrices:
        if not one.claimed:
            one.role = _head_or(one, inside, last)

    kinds: dict[int, _Found] = {}  # of every layer, its first weight
    for one in matrices:
        kinds.setdefault(one.layer, one)
    first = _first_layer(list(kinds.values()))
    layers = 1 + max((one.layer for one in found), default=0)
    places = []
    for one in found:
        shape = one.parameter.shape[batch_dims:]
        layer = kinds.get(one.layer)
        places.append(
            Place(
                one.name, one.parameter, one.line[-1].module, one.layer, layers, batch_dims, one.role,
                _blocks(one, shape, blocks or {}),
                reads_input=one.role == "position" or (layer is not None and _reads_input(layer, first, inside)),
                gives_output=layer is not None and _gives_output(one, layer, layers), direct=one.direct,
                heads=_heads(one, shape, batch_dims, blocks or {}),
            )
        )  # fmt: skip
    return places


def _find(model: nn.Module, batch_dims: int, roles: Roles) -> tuple[list[_Found], str]:
    """All parameters with their roles and layers, and the name of the last module that has a matrix."""
    lines: dict[str, Line] = {}
    found: dict[int, _Found] = {}
    layer, last = -1, ""
    outermost = getattr(model, "template", model) if batch_dims else model  # an ensemble holds its model's parameters
    for prefix, module in model.named_modules():
        parent, _, name = prefix.rpartition(".")
        if prefix and (
            parent not in lines or (name == "parametrizations" and is_parametrized(lines[parent][-1].module))
        ):
            continue  # its parameters are the parametrized module's
        step = Step(name, prefix, module if prefix else outermost)
        line = lines[prefix] = (*(lines[parent] if prefix else ()), step)
        new: list[_Found] = []
        for full, tensor, p, direct in own_parameters(module, prefix):
            if id(p) in found:
                found[id(p)].owners.append(line)
            else:
                own = next((role for pattern, role in roles.items() if fnmatchcase(full, pattern)), None)
                role = own or role_of(line, tensor, p.shape[batch_dims:], direct)
                found[id(p)] = _Found(full, p, [line], role, tensor, direct, claimed=own is not None)
                new.append(found[id(p)])
            if p.ndim - batch_dims >= 2 and found[id(p)].role not in LAYERLESS:
                last = prefix
        layer += any(one.parameter.ndim - batch_dims >= 2 and one.role not in LAYERLESS for one in new)
        for one in new:
            one.layer = max(layer, 0)
    return list(found.values()), last


def _head_or(one: _Found, inside: set[str], last: str) -> str:
    """The role of a matrix, which may be that of a head."""
    looked_up = [isinstance(line[-1].module, EMBEDDINGS) for line in one.owners]
    if any(looked_up) and not all(looked_up):
        return "tied head"
    if one.role not in ("feed-forward", "convolution", "transposed convolution") or is_inside(one.line, inside):
        return one.role
    is_last = any(line[-1].prefix == last for line in one.owners)
    return "head" if is_last or is_named_head(one.line) else one.role


def _first_layer(layers: list[_Found]) -> int:
    """The first one. A module's own weights come before those of the layers inside it, whatever the order they are
    used in, so that such a module is not the first."""
    outer = {step.prefix for one in layers for step in one.line[:-1]}
    return next((one.layer for one in layers if one.line[-1].prefix not in outer), 0)


def _reads_input(layer: _Found, first: int, inside: set[str]) -> bool:
    if layer.role in ("embedding", "tied head"):
        return True
    return layer.layer == first and layer.role not in ("attention", "recurrent") and not is_inside(layer.line, inside)


def _gives_output(one: _Found, layer: _Found, layers: int) -> bool:
    """What follows a head that is not the last layer is no part of it."""
    return layer.role in ("head", "tied head") and (one.line is layer.line or layer.layer == layers - 1)


def _blocks(one: _Found, shape: tuple[int, ...], given: Blocks) -> int:
    if len(shape) < 2:
        return 1
    count = _given(one, given)
    if count is None:
        return blocks_of(one.line, one.tensor, shape)
    module = one.line[-1].module
    stack = len(shape) - 2 if len(shape) > 2 and not _is_read_by_type(module, one.role) else 0
    outputs = shape[1 if is_transposed_linear(module) or isinstance(module, TRANSPOSED) else stack]
    if outputs % count:
        raise PartitionError(f"blocks: the {outputs} outputs of {one.name!r} are not {count} equal blocks")
    return count


def _heads(one: _Found, shape: tuple[int, ...], batch_dims: int, given: Blocks) -> View | None:
    count = _given(one, given)
    if count is None and one.role != "attention":
        return None
    found = heads_of(one.line, one.tensor, shape, blocks_of(one.line, one.tensor, shape), count)
    return None if found is None else View(batch_dims, *found)


def _given(one: _Found, given: Blocks) -> int | None:
    """How many blocks the user says there are."""
    return next((n for pattern, n in given.items() if fnmatchcase(one.name, pattern)), None)
