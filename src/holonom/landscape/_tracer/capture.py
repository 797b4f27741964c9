"""A model's forward as a torch.fx graph, or None where symbolic tracing cannot follow it."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..._torch import has_forward_hooks
from ..evaluation import map_leaves

_CONSTANTS = (bool, int, float, str, type(None), torch.dtype, torch.device)
# Modules that are traced into functions of their weights; torch.fx keeps other modules of torch.nn whole.
_INLINED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ReLU)


class Untraceable(Exception):
    pass


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among a call's arguments."""

    number: int


def flatten(arguments: Any) -> tuple[list[Tensor], Any]:
    """The tensors among a call's arguments, and the arguments with slots in their place."""
    found: list[Tensor] = []

    def slot(x: Any) -> Any:
        if isinstance(x, Tensor):
            found.append(x)
            return Slot(len(found) - 1)
        if not isinstance(x, _CONSTANTS):
            raise Untraceable
        return x

    return found, map_leaves(slot, arguments)


class Root(nn.Module):
    """Calls the model with a list of tensors; all other arguments are constants of the trace."""

    def __init__(self, model: nn.Module, arguments: Any) -> None:
        super().__init__()
        self.model = model
        self.arguments = arguments

    def forward(self, tensors: Any) -> Any:
        args, kwargs = map_leaves(lambda x: tensors[x.number] if isinstance(x, Slot) else x, self.arguments)
        return self.model(*args, **kwargs)


class _Capture(fx.Tracer):
    proxy_buffer_attributes = True  # buffers move along a path like parameters

    def __init__(self) -> None:
        super().__init__()
        self._proxies: list[weakref.ref[fx.Proxy]] = []
        self._settings = _settings()

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return type(module) not in _INLINED and super().is_leaf_module(module, name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        if _settings() != self._settings:  # a graph does not record context managers
            raise Untraceable
        proxy = super().proxy(node)
        if node.op != "get_attr":  # torch.fx has a cache of these
            self._proxies.append(weakref.ref(proxy))
        return proxy

    @property
    def leaked(self) -> bool:
        """Whether the model stored an intermediate result somewhere; a graph would not."""
        return any(proxy() is not None for proxy in self._proxies)


def capture(model: nn.Module, arguments: Any) -> tuple[fx.Graph, Root] | None:
    """The graph of a call, traced on a copy that shares the model's parameters and buffers."""
    shared: dict[int, Any] = {id(x): x for x in (*model.parameters(), *model.buffers())}
    tracer = _Capture()
    try:
        root = Root(copy.deepcopy(model, shared), arguments)
        graph = tracer.trace(root)
    except Exception:  # whatever a forward raises when it is called with proxies
        return None
    return None if tracer.leaked else (graph, root)


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks may read or change intermediate results."""
    return any(map(has_forward_hooks, model.modules()))


def _settings() -> tuple[Any, ...]:
    autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast
