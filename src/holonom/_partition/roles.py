"""Roles: what a parameter is, by its module's type, then by the types and names of the modules around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import PartitionError

ROLES = {
    "embedding": "rows looked up by a token's number; a linear map or convolution that embeds patches",
    "position": "position embeddings, class tokens and other learned inputs",
    "norm": "weights and biases of norm layers",
    "bias": "vectors and scalars outside norms; stacks of biases",
    "attention": "queries, keys, values and their output",
    "feed-forward": "linear maps; also a matrix that nothing else places",
    "convolution": "kernels, grouped ones included",
    "depthwise convolution": "kernels of one input channel each",
    "transposed convolution": "kernels stored as (in, out, …)",
    "recurrent": "gates of LSTM, GRU and RNN",
    "head": "the last layer, and layers named as heads, outside attention blocks",
    "tied head": "a tensor that is the embedding and the head",
    "other": "only what you place there: presets leave it free",
}
"""Every role and what has it."""

LAYERLESS = ("position", "norm", "bias")
"""Roles of parameters that do not make their module a layer."""

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
KNOWN = (nn.Linear, nn.Bilinear, *CONVOLUTIONS, *TRANSPOSED, *EMBEDDINGS, *RECURRENT)

HEADS = {"head", "classifier", "fc", "lm_head", "score", "output", "output_layer", "out", "logits", "readout"}
_HEAD = re.compile(r"(^|_)head(_|\d|$)")  # head_a, mu_head; a container called heads has several
PACKED = {"c_attn", "qkv", "to_qkv", "Wqkv", "qkv_proj", "W_pack", "to_kv", "kv_proj", "Wkv"}
"""Names of linear maps whose outputs are queries, keys and values one after the other."""

MIXED = {"query_key_value"}
"""Names of linear maps whose outputs are queries, keys and values head by head, in an order that models differ in."""

_POSITION = re.compile(r"(^|_)(pos(ition(s|al)?)?|wpe|posemb)(_|$)", re.IGNORECASE)
_TOKEN = re.compile(r"(^|_)(token|tokens|latents?|queries|prompts?)$|^class_embedding$", re.IGNORECASE)
_PROJECTION = re.compile(r"(query|key|value|[qkv]_(proj|linear)|w_?[qkv]s?|to_[qkv])", re.IGNORECASE)
_EVIDENCE = (  # of what stands in a module: its role, the module's attribute name, its class name
    ("attention", re.compile(r"attn|attention", re.IGNORECASE), re.compile(r"Attention|Attn|MultiHead|MHA")),
    (
        "feed-forward",
        re.compile(r"(^|_)(mlp|ffn?|feed_?forward|experts?|moe)(_|\d|$)", re.IGNORECASE),
        re.compile(r"MLP|Mlp|FFN|Feed_?Forward"),
    ),
    ("embedding", re.compile(r"embed(ding)?s?$|(^|_)emb$", re.IGNORECASE), re.compile(r"Embed(ding)?s?$")),
)


class Step(NamedTuple):
    """A module on the way from the model to a parameter: its attribute name, its full name, itself."""

    name: str
    prefix: str
    module: nn.Module

    @property
    def kind(self) -> str:
        return kind_of(self.module)

    def implied_role(self) -> str | None:
        """The role that this module gives to linear maps inside it."""
        for role, name, kind in _EVIDENCE:
            if name.search(self.name) or kind.search(self.kind):
                return role
        projections = [name for name, _ in self.module.named_children() if _PROJECTION.fullmatch(name)]
        return "attention" if len(projections) > 1 or self.name in PACKED | MIXED else None


Line = tuple[Step, ...]
"""The modules around a parameter, from the model to the one that owns it."""


class Own(NamedTuple):
    """A parameter of a module: its full name, the name of the tensor it makes up, itself, whether it is that tensor."""

    name: str
    tensor: str
    parameter: nn.Parameter
    direct: bool


def own_parameters(module: nn.Module, prefix: str) -> Iterator[Own]:
    """A module's parameters, those of its parametrizations (:mod:`torch.nn.utils.parametrize`) among them."""
    for name, p in module.named_parameters(prefix, recurse=False):
        last = name.rpartition(".")[2]
        tensor = last.rpartition("_")[0]  # weight_g and weight_v, which the older weight_norm makes a weight of
        made = isinstance(vars(module).get(tensor), Tensor)  # parameters and buffers are in dicts of their own
        yield Own(name, tensor if made else last, p, not made)
    if is_parametrized(module):
        for tensor, made_of in module.parametrizations.items():  # type: ignore[union-attr,operator]
            start = f"{prefix}.parametrizations.{tensor}".lstrip(".")
            yield from (Own(name, tensor, p, False) for name, p in made_of.named_parameters(start))


def kind_of(module: nn.Module) -> str:
    """The name of a module's class, without what parametrizations put in front."""
    return type(module).__name__.removeprefix("Parametrized" if is_parametrized(module) else "")


def check_patterns(roles: Mapping[str, str], blocks: Mapping[str, int], names: Sequence[str]) -> None:
    """Refuse roles that do not exist, and patterns that no name matches."""
    for role in roles.values():
        check_role(role)
    for pattern, count in blocks.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise PartitionError(f"blocks[{pattern!r}] must be a whole number of at least 1, got {count!r}")
    for argument, patterns in (("roles", roles), ("blocks", blocks)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                known = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                raise PartitionError(f"{argument}: no parameter is called {pattern!r}; the names are {known}")


def check_role(role: str) -> None:
    if role not in ROLES:
        raise PartitionError(f"there is no role {role!r}; roles are {', '.join(map(repr, ROLES))}")


def role_of(line: Line, name: str, shape: Sequence[int], direct: bool = True) -> str:
    """The role of a parameter by the modules around it; heads and ties are found later. ``name`` is its last part, or
    that of the tensor that it makes up with others, if it is not ``direct``."""
    owner = line[-1]
    if is_norm(owner.module):
        return "norm"
    if isinstance(owner.module, EMBEDDINGS):
        return "position" if _is_position(line) else "embedding"
    bare = not isinstance(owner.module, KNOWN) and not is_transposed_linear(owner.module)
    if bare and (_POSITION.search(name) or _TOKEN.search(name) or "Position" in owner.kind):
        return "position"
    if len(shape) < 2 or ((bare or not direct) and sum(size > 1 for size in shape) < 2):
        return "bias"
    if bare and name.rpartition("_")[2] == "bias":  # of stacked layers, such as a mixture's experts
        return "bias"
    if isinstance(owner.module, RECURRENT):
        return "recurrent"
    evidence = next((role for step in reversed(line[1:]) if (role := step.implied_role())), None)
    if evidence is None and line[0].kind.endswith("Attention"):  # what else a model's class is called says little
        evidence = "attention"
    if evidence == "embedding":
        return "position" if _is_position(line) else "embedding"
    if isinstance(owner.module, (*CONVOLUTIONS, *TRANSPOSED)) or (len(shape) > 2 and "Conv" in owner.kind):
        return _kind_of_convolution(owner.module)
    return evidence or "feed-forward"


def is_norm(module: nn.Module) -> bool:
    """BatchNorm2d, RMSNorm, and any class with a base whose name ends in Norm."""
    return any(re.search(r"Norm(\dd)?$", kind.__name__) for kind in type(module).__mro__)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether it is the ``Conv1D`` of GPT-2 in transformers, a linear map whose weight is (in, out)."""
    return kind_of(module) == "Conv1D"


def is_transposed(module: nn.Module) -> bool:
    """Whether it is a transposed convolution, whose weight is (in, out, …)."""
    return isinstance(module, TRANSPOSED) or "ConvTranspose" in type(module).__name__


def groups_of(module: nn.Module) -> int:
    """The number of groups of a convolution."""
    groups = getattr(module, "groups", 1)
    return groups if isinstance(groups, int) else 1


def _kind_of_convolution(module: nn.Module) -> str:
    if getattr(module, "in_channels", 0) == groups_of(module) > 1:
        return "depthwise convolution"
    return "transposed convolution" if is_transposed(module) else "convolution"


def _is_position(line: Line) -> bool:
    return any(_POSITION.search(step.name) or "Position" in step.kind for step in line[1:] or line)


def blocks_of(line: Line, name: str, shape: Sequence[int]) -> int:
    """How many matrices are packed along the outputs of a weight; 0 if there are several and the shape does not say
    of which sizes. A module class may say so of its parameters: ``packed_blocks = {"inputs.weight": 3}``."""
    owner = line[-1]
    full = f"{owner.prefix}.{name}" if owner.prefix else name
    for step in line:
        packed: Mapping[str, int] = getattr(step.module, "packed_blocks", None) or {}
        inner = full.removeprefix(f"{step.prefix}.") if step.prefix else full
        if inner in packed:
            return packed[inner]
    if isinstance(owner.module, RECURRENT):
        gates = {"LSTM": 4, "GRU": 3}.get(owner.kind.removesuffix("Cell"), 1)
        return 1 if name.startswith("weight_hr") else gates  # weight_hr is the projection of an LSTM's outputs
    if isinstance(owner.module, nn.MultiheadAttention):
        return 3 if name == "in_proj_weight" else 1
    if len(shape) > 2:
        return groups_of(owner.module) if isinstance(owner.module, CONVOLUTIONS) else 1
    if owner.name in PACKED and len(shape) == 2:
        inputs, outputs = shape if is_transposed_linear(owner.module) else reversed(shape)
        return outputs // inputs if outputs in (2 * inputs, 3 * inputs) else int(outputs <= inputs)
    return int(owner.name not in MIXED)


# ── what stands outside the blocks of a transformer ──────────────────────────────────────────────


def attention_blocks(lines: Sequence[Line], roles: Sequence[str]) -> set[str]:
    """The modules that hold attention together with what follows it, such as a transformer's layers.

    ``lines`` are those of all matrices. A block is the nearest module around an attention module that has other
    matrices as well; the model itself is none, unless its class is called so.
    """
    counts: dict[str, int] = {}
    for line in lines:
        for step in line:
            counts[step.prefix] = counts.get(step.prefix, 0) + 1
    found = set()
    for line, role in zip(lines, roles, strict=True):
        if role != "attention":
            continue
        at = next(i for i in reversed(range(len(line))) if i == 0 or line[i].implied_role() == "attention")
        while at > 1 and line[at - 1].implied_role() == "attention":
            at -= 1
        own = counts[line[at].prefix]
        while at > 0 and counts[line[at].prefix] == own:
            at -= 1
        if counts[line[at].prefix] < counts[line[0].prefix] or re.search(r"(Block|Layer)$", line[at].kind):
            found.add(line[at].prefix)
    return found


def is_inside(line: Line, prefixes: set[str]) -> bool:
    return any(step.prefix in prefixes for step in line)


def is_named_head(line: Line) -> bool:
    """By its name, unless it is one of several like it (blocks.3.fc), or as a part of a …Head or …Pooler."""
    numbered = any(step.name.isdigit() for step in line[:-1])
    name, within = line[-1].name, line[-2].name if len(line) > 1 else ""
    named = name in HEADS or _HEAD.search(name) is not None or within == "heads"
    return (named and not numbered) or any(step.kind.endswith(("Head", "Pooler")) for step in line[1:-1])
