"""ReLUs overwrite their input where nobody else reads it, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from holonom.landscape import interpolate, over
from holonom.landscape.overwriting import overwriting

DATA = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3


class ByHand(nn.Module):
    """Walks through a container itself and reads every layer's result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for layer in self.layers:
            x = layer(x)
            seen.append(x)
        return self.head(sum(seen))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def twice() -> nn.Module:
    """One ReLU at two places, one of which is not behind a layer."""
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 5), relu, nn.Linear(5, 5), nn.Tanh(), relu, nn.Linear(5, 3))


class Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def states(make) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    model, other = make().double(), make().double()
    return model, {name: x.clone() for name, x in model.state_dict().items()}, other.state_dict()


def by_loading(model: nn.Module, start, end, alphas) -> Tensor:
    values = []
    for alpha in alphas.tolist():
        model.load_state_dict({name: (1 - alpha) * x + alpha * end[name] for name, x in start.items()})
        values.append(cross_entropy(model.eval()(DATA[0].double()), DATA[1]))
    model.load_state_dict(start)
    return torch.stack(values).detach()


def path(model: nn.Module, start, end, metric=cross_entropy, batched=True):
    data = DATA[0].double(), DATA[1]
    return interpolate(model, start, end, over(data, metric), 5, progress=False, batched=batched)


@pytest.mark.parametrize("make", [plain, twice, ByHand])
def test_values_are_the_loops(make):
    model, start, end = states(make)
    found = path(model, start, end)
    torch.testing.assert_close(found.values[0], by_loading(model, start, end, found.alphas), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("make", "overwritten"), [(plain, {"relu_"}), (twice, {"relu"}), (ByHand, {"relu"})])
def test_overwritten_is_what_nobody_else_reads(make, overwritten):
    model = states(make)[0]
    with Counter() as counter, torch.no_grad(), overwriting(model):
        model.eval()(DATA[0].double())
    assert {name for name in counter.names if name.startswith("relu")} == overwritten


def test_a_hook_finds_what_the_layer_returned():
    model, start, end = states(plain)
    kept: list[Tensor] = []
    model[0].register_forward_hook(lambda module, inputs, output: kept.append(output))
    path(model, start, end, batched=None)
    with torch.no_grad():
        model(DATA[0].double())
    assert (kept[-1] < 0).any()
    assert len(model[0]._forward_hooks) == 1


def test_the_model_is_handed_back_after_an_error():
    model, start, end = states(plain)

    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        path(model, start, end, broken)
    assert not any(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_layer_whose_forward_was_replaced_may_keep_its_result():
    model = states(plain)[0]
    kept: list[Tensor] = []
    layer, forward = model[0], model[0].forward

    def patched(x: Tensor) -> Tensor:
        kept.append(forward(x))
        return kept[-1]

    layer.forward = patched
    with torch.no_grad(), overwriting(model):
        model(DATA[0].double())
    assert (kept[-1] < 0).any()


def test_a_row_in_place_of_a_matrix():
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 5)
            self.row = nn.Parameter(torch.randn(5))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(torch.tanh(self.body(x)), self.row)

    model, start, end = states(Row)
    metric = lambda outputs, targets: (outputs - targets).square().mean()  # noqa: E731
    together, alone = (path(model, start, end, metric, batched=batched).values for batched in (True, False))
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)
