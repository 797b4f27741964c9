"""holonom.together: several optimizers as one, in torch's contract."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import holonom
from holonom.constraints import Sphere
from holonom.errors import CheckpointError, ConstraintError, PartitionError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def parts(model):
    return [
        SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}], lr=0.1, momentum=0.9),
        AdamW(model[4].named_parameters(), lr=1e-2),
    ]


def backward(model, seed):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    for p in model.parameters():
        p.grad = None
    model(x).square().sum().backward()


def train(model, opt, seeds):
    for seed in seeds:
        backward(model, seed)
        opt.step()


def equal(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_a_step_is_a_step_of_every_part():
    model, twin = network(), network()
    opt, alone = holonom.together(*parts(model)), parts(twin)
    assert isinstance(opt, torch.optim.Optimizer)
    for seed in range(4):
        train(model, opt, [seed])
        backward(twin, seed)
        for part in alone:
            part.step()
    assert equal(model, twin)
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_groups_and_state_are_the_parts_own():
    model = network()
    opt = holonom.together(*parts(model))
    sgd, adam = opt.optimizers
    assert [id(group) for group in opt.param_groups] == [
        id(group) for part in (sgd, adam) for group in part.param_groups
    ]
    opt.param_groups[2]["lr"] = 0.5
    assert adam.param_groups[0]["lr"] == 0.5
    train(model, opt, range(2))
    assert opt.state[model[0].weight] is sgd.state[model[0].weight]
    assert set(opt.state) == set(model.parameters())
    assert len(opt.state) == 6
    opt.state[model[4].bias] = {"step": torch.tensor(7.0)}
    assert adam.state[model[4].bias]["step"] == 7
    del opt.state[model[4].bias]
    assert model[4].bias not in adam.state


def test_the_checkpoint_is_torchs_and_resumes():
    model = network()
    opt = holonom.together(*parts(model))
    train(model, opt, range(3))
    saved = copy.deepcopy(opt.state_dict())
    assert set(saved) == {"state", "param_groups"}
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1], [2, 3], [4, 5]]
    moments = ["exp_avg", "exp_avg_sq", "step"]
    expected = {**{i: ["momentum_buffer"] for i in range(4)}, 4: moments, 5: moments}
    assert {i: sorted(state) for i, state in saved["state"].items()} == expected
    other = network()
    other.load_state_dict(model.state_dict())
    again = holonom.together(*parts(other))
    again.load_state_dict(saved)
    train(model, opt, range(3, 6))
    train(other, again, range(3, 6))
    assert equal(model, other)
    with pytest.raises(CheckpointError, match=r"groups hold \[2, 2, 2\] parameters, these optimizers' \[4, 2\]"):
        holonom.together(
            SGD([*model[0].parameters(), *model[2].parameters()]), SGD(model[4].parameters())
        ).load_state_dict(saved)


@pytest.mark.parametrize("whole", [True, False])
def test_constraints_of_the_whole_or_of_a_part_are_in_its_checkpoint(whole):
    model = network()
    opt = holonom.together(*parts(model))
    held = holonom.constrain(opt if whole else opt.optimizers[0], model, {"2.weight": Sphere("initial", factor=2.0)})
    train(model, opt, range(3))
    saved = copy.deepcopy(opt.state_dict())
    assert list(saved["holonom"]["held"]) == ["2.weight"]
    other = network()
    again = holonom.together(*parts(other))
    handle = holonom.constrain(
        again if whole else again.optimizers[0], other, {"2.weight": Sphere("initial", factor=2.0)}
    )
    other.load_state_dict(model.state_dict())
    again.load_state_dict(saved)
    train(model, opt, range(3, 6))
    train(other, again, range(3, 6))
    assert equal(model, other)
    held.check()
    handle.check()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_copies_step_their_own_parameters(copied):
    model = network()
    opt = holonom.together(*parts(model))
    train(model, opt, range(2))
    twin, other = copied((model, opt))
    train(model, opt, range(2, 4))
    train(twin, other, range(2, 4))
    assert equal(model, twin)


def test_hooks_and_repr():
    model = network()
    opt = holonom.together(*parts(model))
    called = []
    opt.register_step_pre_hook(lambda *_: called.append("pre"))
    opt.register_step_post_hook(lambda *_: called.append("post"))
    opt.register_load_state_dict_post_hook(lambda *_: called.append("loaded"))
    train(model, opt, range(1))
    opt.load_state_dict(opt.state_dict())
    assert called == ["pre", "post", "loaded"]
    assert "SGD" in repr(opt)
    assert "AdamW" in repr(opt)


def test_a_handle_of_a_part_is_found_from_the_whole():
    model = network()
    opt = holonom.together(*parts(model))
    rules = {"2.weight": Sphere("initial")}
    held = holonom.constrain(opt.optimizers[0], model, rules)
    train(model, opt, range(2))
    held.check(opt)
    with pytest.raises(RuntimeError, match="not the one that was constrained"):
        held.check(opt.optimizers[1])
    with pytest.raises(PartitionError, match=r"'2.weight' is held on .* already"):
        holonom.constrain(opt, model, rules)


def test_what_the_handle_of_a_part_refuses_leaves_all_parts_as_they_were():
    def build(lr, space):
        model = network()
        matrices, others = [p for p in model.parameters() if p.ndim == 2], [p for p in model.parameters() if p.ndim < 2]
        held = AdamW(matrices, lr=lr, weight_decay=0.0)
        holonom.constrain(held, model, {"*.weight": space})
        return holonom.together(SGD(others, lr=lr, momentum=0.9), held)

    saved = build(0.1, Sphere("initial")).state_dict()
    other = build(0.2, Sphere("initial", per="matrix"))
    with pytest.raises(CheckpointError, match="build the handle by the rules that the checkpoint was made with"):
        other.load_state_dict(saved)
    assert [group["lr"] for group in other.param_groups] == [0.2, 0.2]
    build(0.2, Sphere("initial")).load_state_dict(saved)


def test_decay_is_that_of_the_innermost_part():
    model = network()
    first = SGD(model[0].parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    others = (AdamW(model[i].parameters(), lr=1e-2, weight_decay=0.1) for i in (2, 4))
    opt = holonom.together(holonom.together(first, next(others)), next(others))
    with pytest.raises(ConstraintError, match=r"(?s)group 0 of SGD has .* a part of the gradient"):
        holonom.constrain(opt, model, {"0.weight": Sphere("initial")}, decay="drop")
    holonom.constrain(opt, model, {"2.weight": Sphere("initial")}, decay="drop")


def test_parts_that_draw_the_same_noise_are_warned_about():
    def noisy(seed, **options):
        p = nn.Parameter(torch.zeros(3))
        options = {"temperature": 1.0, "friction": 1.0, **options}
        return holonom.Langevin([p], 0.1, seed=seed, **options), p

    (one, p), (other, q) = noisy(0), noisy(0)
    with pytest.warns(UserWarning, match=r"optimizers 0 \(Langevin\) and 1 .* the same seed, 0") as caught:
        opt = holonom.together(one, other)
    assert caught[0].filename == __file__
    for x in (p, q):
        x.grad = torch.zeros(3)
    opt.step()
    assert torch.equal(p, q)  # which is why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holonom.together(noisy(0)[0], noisy(1)[0])
        holonom.together(noisy(None)[0], noisy(None)[0])
        holonom.together(noisy(0, temperature=0.0)[0], noisy(0, temperature=0.0)[0])


def test_bad_input():
    model = network()
    first, second = parts(model)
    with pytest.raises(TypeError, match="two optimizers or more, got 1"):
        holonom.together(first)
    with pytest.raises(TypeError, match="got Sequential at place 1"):
        holonom.together(first, model)
    with pytest.raises(TypeError, match="LBFGS"):
        holonom.together(first, torch.optim.LBFGS(model[4].parameters()))
    with pytest.raises(ValueError, match="optimizers 0 and 1 both hold a parameter of shape"):
        holonom.together(first, SGD(model.parameters()))
    with pytest.raises(TypeError, match=r"\.optimizers\[i\]\.add_param_group"):
        holonom.together(first, second).add_param_group({"params": nn.Linear(2, 2).parameters()})
