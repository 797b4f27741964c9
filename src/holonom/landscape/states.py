"""States of a model: checked against the model, moved to its device, and divided into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

State = Mapping[str, Any]
Blocks = str | Sequence[str] | Mapping[str, str | Sequence[str]]


class Subject:
    """A model, and how many replicas of it a state holds.

    Of a :class:`holonom.Ensemble` (anything with ``replicas`` and ``alone``) one member is used, with states that have
    the replicas in front. ``replicas=R`` is for an ordinary model whose states were stacked by hand.
    """

    def __init__(self, model: nn.Module, replicas: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        self.owner = model
        count, alone = (getattr(model, name, None) for name in ("replicas", "alone"))
        if isinstance(count, int) and callable(alone):
            if replicas not in (None, count):
                raise ValueError(f"the ensemble has {count} replicas, not {replicas}")
            model, replicas = alone(0), count
        if replicas is not None and replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        self.model = model
        self.replicas = replicas
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        if not self.parameters:
            raise ValueError("the model has no parameters, so it has no landscape")
        self.device = next(iter(self.parameters.values())).device
        self._saved = set(model.state_dict(keep_vars=True))
        self.tied = _tied(model, {**self.parameters, **self.buffers})

    def take(self, state: State | nn.Module, what: str) -> dict[str, Tensor]:
        """A state as tensors with the model's names, dtypes and device, each ([R,] *shape)."""
        given = state.state_dict() if isinstance(state, nn.Module) else state
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a state_dict or a module, got {type(state).__name__}")
        wanted = {name: x for name, x in {**self.parameters, **self.buffers}.items() if name in self._saved}
        self._check_names(given, wanted, what)
        wrong = [
            f"{name} is {tuple(given[name].shape)} instead of {tuple(self._shape(x))}"
            for name, x in wanted.items()
            if given[name].shape != self._shape(x)
        ]
        if wrong:
            more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
            raise ValueError(f"{what} has other shapes than the model: {'; '.join(wrong[:4])}{more}")
        taken = {name: given[name].detach().to(self.device, x.dtype) for name, x in wanted.items()}
        bad = [name for name, x in taken.items() if x.is_floating_point() and not bool(x.isfinite().all())]
        if bad:
            raise ValueError(f"{what} holds NaN or infinity in {', '.join(bad[:4])}")
        return taken

    def _shape(self, x: Tensor) -> torch.Size:
        return x.shape if self.replicas is None else torch.Size((self.replicas, *x.shape))

    def _check_names(self, given: State, wanted: Iterable[str], what: str) -> None:
        missing = [name for name in wanted if not isinstance(given.get(name), Tensor)]
        unknown = [name for name in given if name not in self._saved]
        if missing or unknown:
            parts = [f"misses {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}"] if missing else []
            parts += [f"has {', '.join(unknown[:4])}{' …' if len(unknown) > 4 else ''} besides"] if unknown else []
            raise ValueError(
                f"{what} is not a state of this model: it {' and '.join(parts)}. Give state_dicts of one architecture"
            )

    @contextmanager
    def evaluating(self) -> Any:
        """The model in evaluation mode; every module gets its mode back, also after an error."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _tied(model: nn.Module, named: Mapping[str, Tensor]) -> dict[str, str]:
    """The other names of tensors that a model has under several, with the name under which the tensor is listed."""
    first = {id(x): name for name, x in named.items()}
    places = [
        (f"{prefix}.{name}" if prefix else name, first[id(x)])
        for prefix, module in model.named_modules()
        for named_tensors in (module.named_parameters, module.named_buffers)
        for name, x in named_tensors(recurse=False, remove_duplicate=False)
    ]
    return {place: name for place, name in places if place != name}


def blocks_of(model: nn.Module, blocks: Blocks = "auto") -> dict[str, list[str]]:
    """Names of the parameters and buffers of each block.

    "auto": the model's children; a container of layers is divided into its layers (VGG's ``features``), a container of
    blocks stays one (ResNet's ``layer1``). A norm belongs to the block before it. A list of names or patterns makes one
    block of each; a mapping gives them labels. Blocks may overlap:
    {"block 3": "layer3.*", "its statistics": ["layer3.*.running_mean", "layer3.*.running_var"]}.
    """
    names = [*dict(model.named_parameters()), *dict(model.named_buffers())]
    if blocks == "auto":
        return _automatic(model, names)
    listed = [blocks] if isinstance(blocks, str) else blocks
    rules = listed if isinstance(listed, Mapping) else {pattern: pattern for pattern in listed}
    found = {}
    for label, patterns in rules.items():
        wanted = [patterns] if isinstance(patterns, str) else patterns
        found[label] = [name for name in names if any(_covers(pattern, name) for pattern in wanted)]
        if not found[label]:
            raise ValueError(f"block {label!r} names nothing in the model; its names are {', '.join(names[:8])} …")
    if not found:
        raise ValueError("blocks is empty; give names, patterns or 'auto'")
    return found


def _covers(pattern: str, name: str) -> bool:
    """A pattern covers the names it matches, and everything inside the module it matches."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _automatic(model: nn.Module, names: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for prefix, part in _parts("", model):
        inside = [name for name in names if name == prefix or name.startswith(f"{prefix}.")]
        tensors = list(part.parameters()) if isinstance(part, nn.Module) else [part]
        if inside and found and all(x.ndim < 2 for x in tensors):
            found[list(found)[-1]] += inside
        elif inside:
            found[prefix] = inside
    return found


def _parts(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module | Tensor]]:
    """The module's parts in order; a container is divided if it has layers as children, or is the only child."""
    parts: list[tuple[str, nn.Module | Tensor]] = []
    dot = f"{prefix}." if prefix else ""
    for name, p in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        parts.append((f"{dot}{name}", p))
    children = [(f"{dot}{name}", child) for name, child in module.named_children() if _has_tensors(child)]
    for name, child in children:
        layers = [one for one in child.children() if _has_tensors(one)]
        container = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        flat = container and any(not list(one.children()) for one in layers)
        parts += _parts(name, child) if flat or (layers and len(children) == 1) else [(name, child)]
    return parts


def _has_tensors(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())
