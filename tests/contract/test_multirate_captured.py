"""Training loops replay steps of optimizers that have several kinds of them: each kind is one graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from holonom import Ensemble, Multirate
from holonom._training import graphs
from holonom._training.graphs import GraphedStep, record
from holonom._training.stepper import Stepper
from holonom.batches import Shuffled
from holonom.multirate import RandomSubsets
from holonom.training import train

STEPS = 60
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def multirate(ensemble: Ensemble, drift: bool) -> Optimizer:
    parts = dict(ensemble.named_parameters())
    slow = [p for name, p in parts.items() if name.endswith("bias")]
    fast = [p for name, p in parts.items() if name.endswith("weight")]
    return Multirate([{"params": fast}, {"params": slow, "every": 4}], 0.05, drift=drift, model=ensemble)


def subsets(ensemble: Ensemble, catch_up: bool) -> Optimizer:
    weights = [p for name, p in ensemble.named_parameters() if name.endswith("weight")]
    biases = [p for name, p in ensemble.named_parameters() if name.endswith("bias")]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": biases, "probability": 0.0}]
    return RandomSubsets(groups, 0.05, 0.4, 3 if catch_up else 1, catch_up=catch_up, momentum=0.9, seed=7)


OPTIMIZERS: dict[str, Callable[[Ensemble], Optimizer]] = {
    "drift": lambda e: multirate(e, True),
    "leap": lambda e: multirate(e, False),
    "subsets": lambda e: subsets(e, True),
    "zeros": lambda e: subsets(e, False),
}


def build(device: str) -> tuple[Ensemble, Shuffled]:
    ensemble = Ensemble(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)), 2, seed=0).to(device)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(44, 5, generator=generator), torch.randint(3, (44,), generator=generator)
    return ensemble, Shuffled(x.to(device), y.to(device), 4, ensemble.seeds)


def weights(ensemble: Ensemble) -> dict[str, Tensor]:
    return {name: p.detach().cpu().clone() for name, p in ensemble.named_parameters()}


class Replay:
    """Of a captured step, on any device: the step without the host's bookkeeping."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.kind, self.count = stepper.optimizer.upcoming(), 0
        self.reads = masks(stepper.optimizer)
        stepper._count(1)  # a capture runs the step's Python

    def replay(self) -> None:
        assert self.stepper.optimizer.upcoming() == self.kind
        assert all(a is b for a, b in zip(masks(self.stepper.optimizer), self.reads, strict=True))
        self.stepper._step()
        self.stepper._count(-1)
        self.count += 1


def rehearse(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """Capture and replay as on a GPU. Returns the captures as they are made."""
    captures: list[Replay] = []
    monkeypatch.setattr(graphs, "record", lambda step: captures.append(Replay(stepper)) or captures[-1])
    stepper._steps = GraphedStep(stepper._step, stepper._constants, torch.device("cuda"), count=stepper._count)
    return captures


def masks(optimizer: Optimizer) -> list[Tensor]:
    return [x for _, kept in getattr(optimizer, "_subsets", {}).values() for x in kept]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replays_by_kind_are_the_steps_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, captures = [], []
    for captured in (False, True):
        ensemble, batches = build("cpu")
        stepper = Stepper(ensemble, OPTIMIZERS[name](ensemble), cross_entropy, batches, compiled=False)
        if captured:
            captures = rehearse(stepper, monkeypatch)
        for epoch in range(4):
            stepper.run(batches.order(epoch))
        found.append(weights(ensemble))
        assert {group["clock"] for group in stepper.optimizer.param_groups} == {44}
    assert len(captures) == (1 if name == "zeros" else 2)
    assert sum(graph.count for graph in captures) >= 30
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key


def test_no_garbage_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture on no GPU; garbage is collected again afterwards, also if the step fails."""
    seen: list[str] = []

    @contextmanager
    def graph(made: str) -> Iterator[None]:
        seen.append(f"{made} begins")
        yield
        seen.append(f"{made} ends")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(torch.cuda, "graph", graph)
    assert record(lambda: seen.append(f"collecting: {gc.isenabled()}")) == "graph"
    assert seen == ["graph begins", "collecting: False", "graph ends"]
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        record(lambda: seen.append(str(1 // 0)))
    assert gc.isenabled()


def run(name: str, device: str, **options: Any) -> dict[str, Tensor]:
    ensemble, batches = build(device)
    looks = options.pop("evaluate", lambda e: {})
    train(ensemble, OPTIMIZERS[name](ensemble), cross_entropy, batches, STEPS, evaluate=looks, evaluations=4, **options)
    return weights(ensemble)


@needs_cuda
@pytest.mark.parametrize("name", ["drift", "leap"])
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_multirate_equals_the_cpu_run(name: str, compiled: bool) -> None:
    here, there = run(name, "cpu", compiled=False), run(name, "cuda", compiled=compiled)
    for key, value in here.items():
        torch.testing.assert_close(there[key], value, rtol=2e-3, atol=2e-4, msg=key)


@needs_cuda
@pytest.mark.parametrize("name", ["subsets", "zeros"])
def test_captured_subsets_equal_steps_made_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = run(name, "cuda", compiled=False)
    monkeypatch.setattr("holonom._training.stepper.can_capture", lambda optimizer: False)
    for key, value in run(name, "cuda", compiled=False).items():
        torch.testing.assert_close(captured[key], value, rtol=2e-3, atol=2e-4, msg=key)


@needs_cuda
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_captured_runs_resume_bit_equal(name: str, tmp_path: Path) -> None:
    whole = run(name, "cuda", compiled=False)
    calls: list[int] = []

    def killed(ensemble: Ensemble) -> dict[str, Tensor]:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(name, "cuda", compiled=False, checkpoint=tmp_path / "run.pt", evaluate=killed)
    resumed = run(name, "cuda", compiled=False, checkpoint=tmp_path / "run.pt")
    for key, value in whole.items():
        assert torch.equal(value, resumed[key]), key
