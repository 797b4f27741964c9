"""The step that a compiler traces is the ordinary one, also while rates change under it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holonom import Ensemble, Langevin
from holonom.constraints import Circle, Sphere

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


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize("space", [None, Circle(1.0), Sphere(1.0, view="batch")], ids=["free", "circle", "sphere"])
@pytest.mark.parametrize("word", ["L", "BAOAB", "BACDEDCAB"])
def test_a_compiler_sees_one_graph_without_multi_tensor_operations(word: str, space: Circle | None) -> None:
    """A GPU's compiler may launch multi-tensor kernels that depend on each other at once: a race."""
    ensemble = Ensemble(lambda: nn.Linear(3, 2), 2)
    weights = [{"params": [ensemble.weight], "constraint": space}, {"params": [ensemble.bias]}]
    optimizer = Langevin(
        weights, 0.1, scheme=word, temperature=0.01, weight_decay=0.1, maximize=True, seed=ensemble.seeds
    )
    for p in ensemble.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    plan = optimizer.steady_steps()
    if plan is None:
        pytest.skip(f"{word} is not compiled as a whole on this space")
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def advance() -> None:
        for cells, go in plan:
            go([[p.grad for p in cell] for cell in cells])

    torch.compiler.reset()
    torch.compile(torch.no_grad()(advance), backend=look, fullgraph=True)()
    assert seen
    assert not [name for name in seen if "foreach" in name]
