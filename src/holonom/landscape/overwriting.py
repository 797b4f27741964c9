"""ReLUs that write where they read, as long as nobody else can want what they were given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from torch import nn

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@contextmanager
def overwriting(model: nn.Module) -> Iterator[None]:
    """Of many points evaluated together the activations are what takes time, and a ReLU need not write a second copy.

    In an ``nn.Sequential`` what a layer returns is read by the next one alone, while the container itself runs; a
    model that walks through its layers by hand, or has hooks on them, may keep it, and finds it unchanged.
    """
    times = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    handles = []
    chosen: list[nn.ReLU] = []
    for container in model.modules():
        relus = [relu for relu in _relus(container) if times[id(relu)] == 1]
        if relus:
            chosen += relus
            handles.append(container.register_forward_pre_hook(_switch(relus, True)))
            handles.append(container.register_forward_hook(_switch(relus, False), always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for relu in chosen:
            relu.inplace = False


def _relus(container: nn.Module) -> list[nn.ReLU]:
    """Those right behind a layer whose result is its own."""
    if not isinstance(container, nn.Sequential):
        return []
    if type(container).forward is not nn.Sequential.forward or "forward" in vars(container):
        return []
    return [
        relu
        for layer, relu in pairwise(container)
        if type(relu) is nn.ReLU and type(layer) in _LAYERS and not relu.inplace and not _watched(layer, relu)
    ]


def _watched(*modules: nn.Module) -> bool:
    """Whether something else than the container can get hold of what these return."""
    everywhere = nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)


def _switch(relus: list[nn.ReLU], inplace: bool) -> Any:
    def switch(*_: Any) -> None:
        for relu in relus:
            relu.inplace = inplace

    return switch
