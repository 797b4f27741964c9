"""A compiled function that goes straight to its program between two questions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holonom.repeated import Repeated


class Model:
    """Reads a tensor and a number, and counts its steps on another tensor."""

    def __init__(self) -> None:
        self.x = torch.arange(4.0)
        self.count = torch.zeros(1)
        self.factor = 2.0

    def step(self) -> dict[str, Tensor]:
        self.count.add_(1)
        return {"scaled": self.factor * self.x, "sum": self.x.sum() + self.count}

    def broken(self) -> dict[str, Tensor]:
        torch._dynamo.graph_break()
        return self.step()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every question."""
    calls: list[int] = []
    ask = Repeated._ask

    def watched(self: Repeated) -> dict[str, Tensor]:
        calls.append(1)
        return ask(self)

    monkeypatch.setattr(Repeated, "_ask", watched)
    return calls


def test_every_call_reads_what_its_tensors_hold_now(asked: list[int]) -> None:
    model = Model()
    repeated = Repeated(model.step)
    for i in range(1, 6):
        model.x.add_(1.0)
        made = repeated()
        assert sorted(made) == ["scaled", "sum"]
        assert torch.equal(made["scaled"], 2 * model.x)
        assert made["sum"].item() == model.x.sum().item() + i
    assert model.count.item() == 5
    assert len(asked) == 2
    repeated.ask_again()
    for _ in range(3):
        repeated()
    assert len(asked) == 3


def test_what_was_replaced_is_seen_after_asking_again(asked: list[int]) -> None:
    model = Model()
    repeated = Repeated(model.step)
    for _ in range(3):
        repeated()
    model.x, model.factor = torch.ones(7), 3.0
    repeated.ask_again()
    for _ in range(4):
        assert torch.equal(repeated()["scaled"], torch.full((7,), 3.0))
    assert model.count.item() == 7
    assert len(asked) == 4


def test_a_function_that_changes_what_it_reads_is_asked_every_time(asked: list[int]) -> None:
    """Numbers, as of a loss that counts its calls, or tensors. Beyond the compiler's limit it runs as it is."""

    class Counting(Model):
        def step(self) -> dict[str, Tensor]:
            self.factor += 1.0
            return super().step()

        def replace(self) -> dict[str, Tensor]:
            self.x = self.x + 1.0
            return super().step()

    model = Counting()
    for name in ("step", "replace"):
        repeated = Repeated(getattr(model, name))
        for i in range(1, 11 if name == "step" else 4):
            made = repeated()
            assert torch.equal(made["scaled"], model.factor * model.x), (name, i)
    assert model.factor == 12.0
    assert torch.equal(model.x, torch.arange(4.0) + 3)
    assert len(asked) == 13


def test_where_the_compiler_is_switched_off_nothing_is_lost() -> None:
    model = Model()
    repeated = Repeated(model.step)
    with torch.compiler.set_stance("force_eager"):
        for i in range(1, 4):
            assert repeated()["sum"].item() == 6 + i


def test_a_function_that_is_no_single_program_is_asked_every_time(asked: list[int]) -> None:
    model = Model()
    repeated = Repeated(model.broken)
    for i in range(1, 5):
        model.x.add_(1.0)
        assert torch.equal(repeated()["scaled"], 2 * model.x)
        assert model.count.item() == i
    assert len(asked) == 4


def test_random_numbers_are_new_in_every_call() -> None:
    x = torch.zeros(100)

    def draw() -> dict[str, Tensor]:
        return {"drawn": torch.nn.functional.dropout(x + 1.0, 0.5)}

    with torch.random.fork_rng():
        torch.manual_seed(0)
        repeated = Repeated(draw)
        draws = [repeated()["drawn"] for _ in range(4)]
    for i, one in enumerate(draws):
        assert sorted(set(one.tolist())) == [0.0, 2.0]
        assert not any(torch.equal(one, other) for other in draws[:i])


def test_results_of_one_call_outlive_the_next() -> None:
    model = Model()
    repeated = Repeated(model.step)
    made = [repeated()["sum"] for _ in range(4)]
    assert [x.item() for x in made] == [7.0, 8.0, 9.0, 10.0]
