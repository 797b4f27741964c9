"""A model as a row of blocks, in the order its forward pass reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PartitionError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Block:
    """A module and the parameters that belong to it; shared ones belong to the first that is reached."""

    name: str
    parameters: tuple[nn.Parameter, ...]

    @property
    def count(self) -> int:
        return sum(p.numel() for p in self.parameters)


def find_blocks(model: nn.Module, forward: Callable[[], Any], names: Iterable[str] | None = None) -> list[Block]:
    """The blocks of a model, or those named, in the order in which ``forward()`` first calls them.

    Containers, and modules with more than half of all parameters, are taken apart into their children.
    Parameters outside every block belong to the first: below it, nothing is saved by keeping them slow.
    """
    modules = dict(_take_apart(model)) if names is None else _named(model, names)
    order = _call_order(modules, forward)
    claimed: set[int] = set()
    blocks = []
    for name in sorted(modules, key=lambda name: order.get(name, -1)):
        own = [p for p in modules[name].parameters() if p.requires_grad and id(p) not in claimed]
        claimed.update(map(id, own))
        if own:
            blocks.append(Block(name, tuple(own)))
    if len(blocks) < 2:
        raise PartitionError(
            f"the model has {len(blocks)} block(s) with trainable parameters, so there is nothing to split; name some "
            f"of its modules: blocks=['encoder.0', …, 'head']"
        )
    outside = [p for p in model.parameters() if p.requires_grad and id(p) not in claimed]
    blocks[0] = Block(blocks[0].name, (*blocks[0].parameters, *outside))
    return blocks


def _take_apart(model: nn.Module) -> list[tuple[str, nn.Module]]:
    total = _count(model)

    def parts(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        children = [(f"{name}.{child}" if name else child, x) for child, x in module.named_children() if _count(x)]
        if children and (isinstance(module, _CONTAINERS) or 2 * _count(module) > total):
            return [part for child in children for part in parts(*child)]
        return [(name, module)]

    return parts("", model)


def _named(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    modules, names = dict(model.named_modules()), list(names)
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise PartitionError(f"the model has no module {', '.join(map(repr, unknown))}; see model.named_modules()")
    return {name: modules[name] for name in names}


def _call_order(modules: dict[str, nn.Module], forward: Callable[[], Any]) -> dict[str, int]:
    order: dict[str, int] = {}

    def note(name: str, *_: Any) -> None:
        order.setdefault(name, len(order))

    hooks = [module.register_forward_pre_hook(partial(note, name)) for name, module in modules.items()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    return order


def _count(module: nn.Module) -> int:
    tensors: Iterable[Tensor] = module.parameters()
    return sum(p.numel() for p in tensors)
