"""The step that a compiler traces is the ordinary one, also while rates change under it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holonom import Ensemble, Langevin
from holonom.constraints import Circle

RATES = [torch.tensor([0.1, 0.2]), torch.tensor([0.1, 0.05]), torch.tensor([0.02, 0.0]), torch.tensor([0.3, 0.1])]


def trained(word: str, space: Circle | None, steady: bool) -> list[Tensor]:
    ensemble = Ensemble(lambda: nn.Linear(3, 2), 2)
    rate = RATES[0].clone()
    optimizer = Langevin(
        ensemble.parameters(), rate, scheme=word, temperature=0.01, constraint=space, seed=ensemble.seeds
    )
    plan = None
    for new in (*RATES, *RATES):
        rate.copy_(new)
        for p in ensemble.parameters():
            p.grad = torch.sin(3 * p.detach()) + 0.2
        if plan is not None:
            with torch.no_grad():
                for cells, advance in plan:
                    advance([[p.grad for p in cell] for cell in cells])
            optimizer.count_replays(1)
            continue
        optimizer.step()
        if steady:
            plan = optimizer.steady_steps()
            assert plan is not None
    return [p.detach() for p in ensemble.parameters()]


@pytest.mark.parametrize("space", [None, Circle(1.0)], ids=["free", "circle"])
@pytest.mark.parametrize("word", ["ABO", "BAOAB", "OBA", "L"])
def test_rates_that_change_in_place(word: str, space: Circle | None) -> None:
    """What a rotated word owes is owed at the last step's rate."""
    for ordinary, traced in zip(trained(word, space, False), trained(word, space, True), strict=True):
        torch.testing.assert_close(traced, ordinary)
