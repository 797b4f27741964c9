"""The networks and optimizers of the experiments with constraints around AdamW and Muon."""

import numpy as np
import pytest
import torch
from torch import nn

from holonom.experiments.setups.constrained.arms import ARMS, HARD, IMAGE_ADAMW_HELD, IMAGE_ARMS, IMAGE_SGD_HELD, ROWS
from holonom.experiments.setups.constrained.characters import GPT, Size
from holonom.experiments.setups.constrained.comparison import LOOKS, marks, schedule
from holonom.experiments.studies.lm import best_power, rates_around, shift
from holonom.models import resnet18
from holonom.partitions import locate

SIZE = Size(width=16, layers=2, heads=2, context=8, batch=4, steps=100, warm_up=10)


def gpt():
    torch.manual_seed(0)
    return GPT(11, SIZE)


def test_a_character_sees_those_before_it_alone():
    model, tokens = gpt(), torch.randint(11, (3, 8))
    logits = model(tokens)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    same = torch.isclose(model(changed), logits, atol=1e-6).all(-1)
    assert same[:, :5].all()
    assert not same[:, 5:].any()


def test_roles_are_those_of_a_transformer():
    roles = {place.name: (place.role, place.blocks) for place in locate(gpt()) if place.ndim == 2}
    assert roles["embedding.weight"][0] == "embedding"
    assert roles["positions.weight"][0] == "position"
    assert roles["head.weight"][0] == "head"
    assert roles["blocks.1.attention.qkv.weight"] == ("attention", 3)
    assert roles["blocks.1.mlp.output.weight"][0] == "feed-forward"


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_moves_all_parameters_and_keeps_its_constraint(arm):
    assert len(arm.grid) == len(set(arm.grid)) == 6
    model = gpt()
    opt = arm.optimizer(arm.grid[0])(model)
    norms = {name: p.detach().norm() for name, p in model.named_parameters()}
    before = [p.detach().clone() for p in model.parameters()]
    tokens = torch.randint(11, (4, 9))
    for _ in range(3):
        opt.zero_grad()
        nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        opt.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    held = {name for name, p in model.named_parameters() if abs(float(p.detach().norm() / norms[name]) - 1) < 1e-6}
    matrices = {name for name in norms if "blocks" in name and "norm" not in name}
    expected = {"AdamW": set(), "Muon": set(), ROWS.name: matrices | {"embedding.weight", "head.weight"}}
    assert held == expected.get(arm.name, matrices)
    if arm is HARD:
        q = model.blocks[0].mlp.input.weight.detach()
        torch.testing.assert_close(q.T @ q, torch.eye(16) * q.square().sum() / 16, atol=1e-6, rtol=0)


@pytest.mark.parametrize("arm", IMAGE_ARMS, ids=lambda arm: arm.name)
def test_every_arm_of_the_images_moves_all_parameters_and_keeps_its_filters_norms(arm):
    assert len(arm.grid) == len(set(arm.grid)) == 6
    torch.manual_seed(0)
    model = resnet18(width=2)
    norms = {name: p.detach().flatten(1).norm(dim=1) for name, p in model.named_parameters() if p.ndim > 1}
    setting = next(setting for setting in arm.grid if arm.second == "decay" or setting[1] == 1.0)
    opt = arm.optimizer(setting)(model)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        opt.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 3, 16, 16)), torch.arange(8)).backward()
        opt.step()
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    after = {name: model.get_parameter(name).detach().flatten(1).norm(dim=1) for name in norms}
    held = {name for name in norms if torch.allclose(after[name], norms[name], rtol=1e-5, atol=0)}
    kernels = {name for name in norms if "stem" not in name and "head" not in name}
    assert held == (kernels if arm in (IMAGE_SGD_HELD, IMAGE_ADAMW_HELD) else set())


def test_the_schedule():
    rates = [schedule(step, SIZE.steps, SIZE.warm_up) for step in range(SIZE.steps + 1)]
    assert rates[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert set(rates[10:61]) == {1.0}
    assert rates[60:] == pytest.approx([(100 - k) / 40 for k in range(60, 101)])
    assert marks(100)[-1] == 100
    assert len(marks(1500)) == LOOKS


def test_the_best_rate_is_the_lowest_point_of_a_parabola():
    powers = np.array([-1.0, 0.0, 1.0])
    assert best_power(3 + 0.5 * (powers - 0.3) ** 2) == pytest.approx(0.3)
    assert best_power([1.0, 0.9, 0.1]) == 1.0  # outside: the edge
    assert best_power([1.0, 2.0, 1.5]) == -1.0  # no minimum between them
    assert best_power([1.0, 0.5, np.inf]) == 0.0
    assert rates_around(1e-3, 3) == [5e-4, 1e-3, 2e-3]
    narrow = np.stack([3 + (powers - 0.5) ** 2, 3 + (powers - 0.25) ** 2], 1)
    wide = np.stack([3 + (powers + 0.25) ** 2, 3 + (powers - 0.25) ** 2], 1)
    assert shift(np.stack([narrow, wide]), None) == pytest.approx([0.75, 0.0])
