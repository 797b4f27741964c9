"""The order of eager steps, captures and replays, with a recorder that stands in for a GPU's."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from holonom._training import graphs
from holonom._training.graphs import GraphedStep

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Log:
    """What happened, in order; each capture has the rate it was made with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.counted: list[int] = []
        self.numbers: list[object] = [0.1]
        monkeypatch.setattr(graphs, "record", self.record)

    def step(self) -> None:
        self.events.append("step")

    def record(self, step: object) -> SimpleNamespace:
        assert step == self.step
        name = f"replay {self.numbers[0]}"
        self.events.append("record")
        return SimpleNamespace(replay=lambda: self.events.append(name))

    def make(self, device: torch.device = CUDA, warm_up: int = 2) -> GraphedStep:
        return GraphedStep(self.step, lambda: list(self.numbers), device, warm_up, self.counted.append)

    def take(self) -> list[str]:
        events, self.events = self.events, []
        return events


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_on_a_cpu_steps_are_called(log: Log) -> None:
    graphed = log.make(CPU)
    graphed(steps=5)
    graphed("slow")
    assert log.events == ["step"] * 6
    assert log.counted == []


def test_steps_warm_up_then_are_captured_and_replayed(log: Log) -> None:
    graphed = log.make()
    graphed()
    assert log.take() == ["step"]
    graphed(steps=4)
    assert log.take() == ["step", "record", *["replay 0.1"] * 3]
    graphed(steps=2)
    assert log.take() == ["replay 0.1"] * 2
    assert log.counted == [-1, 3, 2], "a capture counts a step that does not run; replays run steps that do not count"


def test_after_a_change_one_step_is_eager(log: Log) -> None:
    graphed = log.make()
    graphed(steps=3)
    log.take()
    log.numbers = [0.2]
    graphed()
    assert log.take() == ["step"], "what it owes at the old rate must not become a constant"
    graphed(steps=2)
    assert log.take() == ["record", "replay 0.2", "replay 0.2"]


def test_a_change_before_the_first_capture_delays_it(log: Log) -> None:
    graphed = log.make()
    graphed(steps=2)
    log.take()
    log.numbers = [0.2]
    graphed(steps=2)
    assert log.take() == ["step", "record", "replay 0.2"]


def test_numbers_are_compared_by_value_and_tensors_by_identity(log: Log) -> None:
    rate = torch.tensor(1.0)
    log.numbers = [0.1, rate]
    graphed = log.make(warm_up=0)
    graphed()
    log.take()
    log.numbers = [float("0.1"), rate.fill_(2.0)]
    graphed()
    assert log.take() == ["replay 0.1"], "a graph reads the tensor's new value"
    log.numbers = [0.1, rate.clone()]
    graphed()
    assert log.take() == ["step"]


def test_every_kind_has_its_graph_and_none_is_no_kind(log: Log) -> None:
    graphed = log.make(warm_up=1)
    for kind in ("fast", "slow", "fast", "slow", "fast"):
        graphed(kind)
    assert log.take() == ["step", "step", *2 * ["record", "replay 0.1"], "replay 0.1"]
    graphed(None, steps=3)
    assert log.take() == ["step"] * 3
    log.numbers = [0.2]
    for kind in ("fast", "slow", "fast", "slow"):
        graphed(kind)
    assert log.take() == ["step", "step", *2 * ["record", "replay 0.2"]]


def test_graphs_grow_where_they_are_replayed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of steps is put together from graphs of 1, 2, 4, … steps, each captured once the one before has paid."""
    captured: list[int] = []

    def record(step: Callable[[], object]) -> SimpleNamespace:
        before = len(log.events)
        step()
        size = len(log.events) - before
        captured.append(size)
        del log.events[before:]
        return SimpleNamespace(replay=lambda: log.events.extend(["step"] * size))

    def many(steps: int) -> None:
        for _ in range(steps):
            log.step()

    monkeypatch.setattr(graphs, "record", record)
    graphed = GraphedStep(log.step, lambda: list(log.numbers), CUDA, 2, log.counted.append, many)
    graphed(steps=2 + graphs.GROW_AFTER)
    assert captured == [1]
    graphed(steps=3)
    assert captured == [1, 2]
    for _ in range(2 * graphs.LARGEST):
        graphed(steps=2 * graphs.LARGEST + 3)
    assert captured == [1, 2, 4, 8, 16, 32]
    assert captured[-1] == graphs.LARGEST
    steps = 2 + graphs.GROW_AFTER + 3 + 2 * graphs.LARGEST * (2 * graphs.LARGEST + 3)
    assert len(log.take()) == steps
    assert sum(log.counted) == steps - 2 - sum(captured), "what Python counted is not counted again"
    graphed(steps=32)
    log.numbers = [0.2]
    graphed(steps=32)
    assert captured[6:] == [1, 2], "after a change the first graph is one of a single step"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_every_step_runs_once() -> None:
    total, rate = torch.zeros(1, device=CUDA), [1.0]
    graphed = GraphedStep(lambda: total.add_(rate[0]), lambda: list(rate), CUDA)
    graphed(steps=10)
    rate[0] = 100.0
    graphed(steps=10)
    assert total.item() == 1010.0
