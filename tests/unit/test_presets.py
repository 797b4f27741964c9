"""Presets are compositions: the word, the groups and the numbers the papers name."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Langevin, presets
from holonom.constraints import Circle, LevelSet
from holonom.errors import ConstraintError, PartitionError
from tests import oracle


def perceptron(hidden: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [2, *[8] * hidden, 1]
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


WORDS = {
    "sgld": ["L"],
    "baoab_limit": ["M"],
    "langevin": ["BAOAB"],
    "langevin_in_layers": ["BAOAB", "BAOAB"],
    "lol": ["BAOAB", "BAOAB"],
    "dhsgd": ["BAOAB", "BAOAB"],
    "dhsgdc": ["BAOAB", "L"],
    "adaptive_langevin": ["BACDEDCAB"],
    "adlala": ["BACDEDCAB", "BAOAB"],
    "c_cola_od": ["L", "L"],
    "c_cola_ud": ["BAOAB", "BAOAB"],
    "s_cola_od": ["L", "L"],
    "s_cola_ud": ["BAOAB", "BAOAB"],
}


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
@pytest.mark.parametrize(("name", "words"), WORDS.items())
def test_preset_words(name: str, words: list[str]) -> None:
    opt = getattr(presets, name)(perceptron())
    assert [group["scheme"] for group in opt.param_groups] == words
    assert sum(len(group["params"]) for group in opt.param_groups) == 4


@pytest.mark.parametrize("name", ["o_cola_od", "o_cola_ud"])
@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_orthogonal_presets_leave_first_and_last_layer_free(name: str) -> None:
    opt = getattr(presets, name)(perceptron(hidden=3))
    constrained = [n for g in opt.param_groups if g["constraint"] != "Free()" for n in g["param_names"]]
    assert constrained == ["2.weight", "4.weight"]
    with pytest.raises(PartitionError, match="layers='all'"):
        getattr(presets, name)(perceptron())


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_radius_per_layer() -> None:
    opt = presets.c_cola_od(perceptron(), radius=(1.0, 5.0))
    radii = {g["constraint"]: g["param_names"] for g in opt.param_groups}
    assert radii == {
        "Circle(radius=1.0, margin=0.001)": ["0.weight"],
        "Circle(radius=5.0, margin=0.001)": ["2.weight"],
        "Free()": ["0.bias", "2.bias"],
    }
    with pytest.raises(PartitionError, match="3 radii for 2 layers"):
        presets.c_cola_od(perceptron(), radius=(1.0, 2.0, 3.0))


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_kernels_are_read_as_matrices() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    opt = presets.o_cola_od(model)
    assert "view='conv'" in opt.param_groups[1]["constraint"]
    assert max(opt.residuals()) < 1e-6
    spheres = presets.s_cola_ud(model, slack=False)
    assert max(spheres.residuals()) < 1e-6


def test_lol_and_adlala_numbers() -> None:
    lol = presets.lol(perceptron())
    assert [g["friction"] for g in lol.param_groups] == [0.01, math.inf]
    assert [g["temperature"] for g in lol.param_groups] == [1e-3, 0.0]
    adlala = presets.adlala(perceptron())
    assert adlala.param_groups[0]["thermostat_time"] == pytest.approx(20 * 0.15)
    assert adlala.param_groups[0]["coupling"] is None
    assert adlala.param_groups[1]["friction"] == 0.1
    assert [g["param_names"] for g in adlala.param_groups] == [["0.weight", "0.bias"], ["2.weight", "2.bias"]]


def test_parts_of_deeper_models() -> None:
    opt = presets.langevin_in_layers(perceptron(3), frictions=(0.0, 1.0, 2.0), temperatures=(0.0, 1e-5, 1e-6))
    names = [g["param_names"] for g in opt.param_groups]
    assert names == [["0.weight", "0.bias", "2.weight", "2.bias"], ["4.weight", "4.bias"], ["6.weight", "6.bias"]]


def test_two_part_methods_take_two_groups() -> None:
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    opt = presets.lol([[a], {"params": [b], "weight_decay": 0.1}])
    assert opt.param_groups[1]["weight_decay"] == 0.1
    assert opt.param_groups[1]["friction"] == math.inf
    with pytest.raises(PartitionError, match="2 parts"):
        presets.lol([a, b])
    with pytest.raises(PartitionError, match="1 layer"):
        presets.lol(nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["dhsgd", "dhsgdc"])
def test_dissipated_hamiltonian_presets_equal_the_equations(name: str) -> None:
    """(3.27)-(3.30) from the first step on, on a coupled nonlinear function of two parts."""
    start = np.array([0.4, -0.7, 0.9, 0.2, -0.5])
    matrix = np.diag([2.0, 1.0, 3.0, 1.0, 2.0]) + np.diag([0.3, 0.2, 0.5, 0.1], 1) + np.diag([0.3, 0.2, 0.5, 0.1], -1)

    def grad(q: np.ndarray) -> np.ndarray:
        return matrix @ q + q**3

    first, second = (nn.Parameter(torch.tensor(part)) for part in (start[:3], start[3:]))
    opt = getattr(presets, name)([[first], [second]], lr=0.2)
    q, p = start, np.zeros(3)
    for _ in range(20):
        g = torch.tensor(grad(np.concatenate([first.detach().numpy(), second.detach().numpy()])))
        first.grad, second.grad = g[:3].clone(), g[3:].clone()
        opt.step()
        q, p = getattr(oracle, name)(q, p, grad, 0.2, 3)
        np.testing.assert_allclose(np.concatenate([first.detach(), second.detach()]), q, rtol=0, atol=1e-12)


def test_like_sgd_has_sgds_terms_and_refuses() -> None:
    p = nn.Parameter(torch.ones(2))
    opt = Langevin.like_sgd([p], lr=0.04, momentum=0.9)
    group = opt.param_groups[0]
    assert (group["lr"], group["momentum"], group["friction"]) == (0.04, 0.9, None)
    assert (opt.defaults["lr"], opt.defaults["momentum"]) == (0.04, 0.9)
    with pytest.raises(ValueError, match="momentum"):
        Langevin.like_sgd([p], lr=0.1, momentum=1.0)
    with pytest.raises(ValueError, match=r"lr .* must be finite and at least 0"):
        Langevin.like_sgd([p], lr=-0.1)


def test_like_sgd_takes_groups_with_numbers_of_their_own() -> None:
    def groups() -> list[dict]:
        params = [nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3)]
        return [{"params": params[:1], "lr": 0.01, "momentum": 0.5}, {"params": params[1:2], "momentum": 0.0},
                {"params": params[2:]}]  # fmt: skip

    ours, theirs = groups(), groups()
    optimizers = Langevin.like_sgd(ours, 0.1, 0.9), torch.optim.SGD(theirs, 0.1, 0.9)
    assert "momentum" in ours[0], "what the user gave is left as it was"
    for _ in range(5):
        for opt in optimizers:
            for group in opt.param_groups:
                group["params"][0].grad = torch.sin(group["params"][0].detach())
            opt.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one["params"], other["params"], rtol=0, atol=1e-14)


def test_like_sgd_says_what_does_not_carry_over() -> None:
    p = nn.Parameter(torch.ones(2))
    Langevin.like_sgd([p], 0.1, 0.9, nesterov=False, dampening=0)
    with pytest.raises(ValueError, match="nesterov does not carry over"):
        Langevin.like_sgd([p], 0.1, 0.9, nesterov=True)
    with pytest.raises(ValueError, match="dampening does not carry over"):
        Langevin.like_sgd([{"params": [p], "dampening": 0.1}], 0.1, 0.9)


def test_given_groups_stay_apart() -> None:
    a, b = (nn.Parameter(torch.tensor([[1.0, 0.0]]) * size) for size in (1, 2))
    spaces = [LevelSet(lambda q: q.norm() - 1), LevelSet(lambda q: q.norm() - 2)]  # which print alike
    opt = presets.c_cola_od([{"params": [p], "constraint": space} for p, space in zip((a, b), spaces, strict=True)])
    assert len(opt.param_groups) == 2
    assert b.norm() == 2


def test_dhsgd_starts_with_the_step_it_has_then() -> None:
    first, second = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
    opt = presets.dhsgd([[first], [second]], lr=0.2)
    for group in opt.param_groups:
        group["lr"] = 0.02  # as a warm-up does
    first.grad = second.grad = torch.ones(1, dtype=torch.float64)
    opt.step()
    assert second.item() == pytest.approx(-(0.02**2) / 2, rel=1e-12)


@pytest.mark.parametrize("preset", ["sgld", "lol", "o_cola_od", "c_cola_od"])
def test_groups_may_hold_iterators_or_one_tensor(preset: str) -> None:
    net = perceptron()
    groups = [{"params": net[0].parameters()}, {"params": net[2].weight}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "weights that did not satisfy")
        opt = getattr(presets, preset)(groups)
    held = {id(p) for group in opt.param_groups for p in group["params"]}
    assert held == {id(net[0].weight), id(net[0].bias), id(net[2].weight)}


@pytest.mark.parametrize("preset", ["sgld", "s_cola_ud"])
@pytest.mark.parametrize("kind", ["iterators", "one group", "one tensor"])
def test_what_is_neither_a_model_nor_parameters_nor_groups_is_refused(preset: str, kind: str) -> None:
    net = perceptron()
    given = {"iterators": [net.parameters()], "one group": {"params": net.parameters()}, "one tensor": net[0].weight}
    with pytest.raises(TypeError, match="give the model, its parameters, or a list of groups"):
        getattr(presets, preset)(given[kind])


@pytest.mark.parametrize("preset", ["o_cola_ud", "c_cola_od", "s_cola_ud"])
def test_a_constraint_that_would_be_ignored_is_refused(preset: str) -> None:
    with pytest.raises(TypeError, match="constraint= would have no effect"):
        getattr(presets, preset)(perceptron(2), constraint=Circle(0.5))
    opt = presets.sgld(perceptron(), constraint=Circle(2.0))
    assert opt.param_groups[0]["constraint"].startswith("Circle")
    assert len(presets.sgld([nn.Parameter(torch.ones(2))], constraint=Circle(2.0)).param_groups) == 1


@pytest.mark.parametrize("name", ["sgld", "langevin", "o_cola_ud", "c_cola_od"])
def test_what_is_no_model_and_no_parameters_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="give the model, its parameters, or a list of groups"):
        getattr(presets, name)(None)
    with pytest.raises(PartitionError, match="2 parts: give a model"):
        presets.adlala(None)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_a_radius_may_be_that_of_the_initial_weights() -> None:
    opt = presets.s_cola_ud(perceptron(), radius="initial", slack=False)
    assert [g["constraint"] for g in opt.param_groups if g["constraint"] != "Free()"] == [
        "Sphere(radius='initial', slack=False, view=None, margin=0.001)"
    ]
    with pytest.raises(ConstraintError, match="Circle: a radius is a number or a tensor"):
        presets.c_cola_ud(perceptron(), radius="initial")
