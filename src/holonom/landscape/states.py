"""States of a model: checked against it, brought to its device, seen as parameters, statistics and blocks."""

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
    """The model that is looked at, and how many replicas of it a state holds.

    A :class:`holonom.Ensemble` (anything with ``replicas`` and ``alone``) is looked at through one of its
    members, with states that carry the replicas in front. ``replicas=R`` says the same of an ordinary
    model whose states were stacked by hand.
    """

    def __init__(self, model: nn.Module, replicas: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        self.owner = model
        own, alone = (getattr(model, name, None) for name in ("replicas", "alone"))
        if isinstance(own, int) and callable(alone):
            if replicas not in (None, own):
                raise ValueError(f"the ensemble has {own} replicas, not {replicas}")
            model, replicas = alone(0), own
        if replicas is not None and replicas < 1:
            raise ValueError(f"replicas must be at least 1, got {replicas}")
        self.model = model
        self.replicas = replicas
        self.parameters = dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())
        if not self.parameters:
            raise ValueError("the model has no parameters, so there is no landscape to look at")
        self.device = next(iter(self.parameters.values())).device
        self._saved = set(model.state_dict(keep_vars=True))
        self.tied = _tied(model, {**self.parameters, **self.buffers})

    def take(self, state: State | nn.Module, what: str) -> dict[str, Tensor]:
        """A state as tensors of the model's names, dtypes and device, each ([R,] *shape)."""
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
            raise ValueError(f"{what} holds NaN or infinity in {', '.join(bad[:4])}; there is no path to it")
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
        """The model in evaluation mode; every module's own mode comes back, also after an error."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def _tied(model: nn.Module, named: Mapping[str, Tensor]) -> dict[str, str]:
    """Further places of tensors that a model has in several, each with the name that the tensor goes by.

    A module that is itself in several places is one place.
    """
    first = {id(x): name for name, x in named.items()}
    places = [
        (f"{prefix}.{name}" if prefix else name, first[id(x)])
        for prefix, module in model.named_modules()
        for own in (module.named_parameters, module.named_buffers)
        for name, x in own(recurse=False, remove_duplicate=False)
    ]
    return {place: name for place, name in places if place != name}


def blocks_of(model: nn.Module, blocks: Blocks = "auto") -> dict[str, list[str]]:
    """Names of the parameters and buffers of each block.

    "auto": the model's children, containers of layers opened up (VGG's ``features`` becomes its
    layers, ResNet's ``layer1`` stays a block). A norm without a matrix belongs to the block before it.
    A list of names or patterns makes one block of each; a mapping names its own, and they may
    overlap: {"block 3": "layer3.*", "its statistics": ["layer3.*.running_mean", "layer3.*.running_var"]}.
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
    for prefix, part in _opened("", model):
        own = [name for name in names if name == prefix or name.startswith(f"{prefix}.")]
        tensors = list(part.parameters()) if isinstance(part, nn.Module) else [part]
        if own and found and all(x.ndim < 2 for x in tensors):
            found[list(found)[-1]] += own
        elif own:
            found[prefix] = own
    return found


def _opened(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module | Tensor]]:
    """The module's parts in order; a container is opened if it holds layers itself, or if it is all there is."""
    parts: list[tuple[str, nn.Module | Tensor]] = []
    dot = f"{prefix}." if prefix else ""
    for name, p in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        parts.append((f"{dot}{name}", p))
    children = [(f"{dot}{name}", child) for name, child in module.named_children() if _holds_something(child)]
    for name, child in children:
        layers = [one for one in child.children() if _holds_something(one)]
        container = isinstance(child, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        flat = container and any(not list(one.children()) for one in layers)
        parts += _opened(name, child) if flat or (layers and len(children) == 1) else [(name, child)]
    return parts


def _holds_something(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())
