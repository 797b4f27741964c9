"""Saving, copying and restoring: a resumed run is the uninterrupted one, noise included, bit for bit."""

import copy
import io
import pickle
import warnings

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle
from holonom.errors import CheckpointError

from .cases import Case, Net, assert_equal, build, counters, every_case, few_cases, loss, optimizer, snapshot, train


def through_a_file(checkpoint):
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@every_case
@pytest.mark.parametrize("first", ["net", "opt"])
def test_a_resumed_run_equals_the_uninterrupted_one(case, first):
    net, opt = build(case)
    train(net, opt, 3)
    saved = through_a_file({"net": net.state_dict(), "opt": opt.state_dict()})
    train(net, opt, 4)

    parts = dict(zip(("net", "opt"), build(case, init=1, lr=0.5, seed=None), strict=True))
    for part in [first, *(parts.keys() - {first})]:
        parts[part].load_state_dict(saved[part])
    train(parts["net"], parts["opt"], 4)
    assert_equal(snapshot(**parts), snapshot(net, opt))
    assert counters(parts["opt"]) == counters(opt)


@every_case
def test_state_is_complete_before_the_first_step(case):
    def layout(opt):
        saved = opt.state_dict()
        tensors = {(i, slot): x for i, own in saved["state"].items() for slot, x in own.items() if slot != "stream"}
        state = {key: (x.shape, x.dtype, x.stride()) for key, x in tensors.items()}
        return state, [sorted(group) for group in saved["param_groups"]]

    net, opt = build(case)
    before = layout(opt)
    momentum = "chord" if case.orthogonal and case.space != "orthogonal-k1" else "momentum"
    assert before[0].keys() >= {(i, momentum) for i in range(3) if case.scheme not in "LM"}
    train(net, opt, 2)
    assert layout(opt) == before


@every_case
def test_a_deep_copy_of_model_and_optimizer_together_goes_on_alike(case):
    net, opt = build(case)
    train(net, opt, 2)
    twin, twin_opt = copy.deepcopy((net, opt))
    assert [id(p) for p in twin.parameters()] == [id(p) for p in twin_opt.param_groups[0]["params"]]
    at_copy = snapshot(net, opt)
    train(twin, twin_opt, 3)
    assert_equal(snapshot(net, opt), at_copy)  # nothing is shared
    train(net, opt, 3)
    assert_equal(snapshot(twin, twin_opt), snapshot(net, opt))


@every_case
def test_a_pickle_goes_on_alike(case):
    net, opt = build(case)
    train(net, opt, 2)
    twin, twin_opt = pickle.loads(pickle.dumps((net, opt)))
    assert repr(twin_opt) == repr(opt)
    train(twin, twin_opt, 3)
    train(net, opt, 3)
    assert_equal(snapshot(twin, twin_opt), snapshot(net, opt))


@few_cases
def test_a_deep_copy_of_the_optimizer_alone_has_its_own_parameters(case):
    net, opt = build(case)
    train(net, opt, 2)
    twin = copy.deepcopy(opt)
    own = twin.param_groups[0]["params"]
    assert not {id(p) for p in own} & {id(p) for p in net.parameters()}
    before = snapshot(net, opt)
    loss(net).backward()
    for p, q in zip(net.parameters(), own, strict=True):
        q.grad = p.grad.clone()
    twin.step()
    assert_equal(snapshot(net, opt), before)
    opt.step()
    for p, q in zip(net.parameters(), own, strict=True):
        assert torch.equal(p, q)
        assert_equal(twin.state[q], opt.state[p])


def test_a_copy_keeps_what_was_set_on_the_optimizer():
    _, opt = build(Case("BAOAB", "free"))
    opt.guard_gradients = False
    assert copy.deepcopy(opt).guard_gradients is False
    assert pickle.loads(pickle.dumps(opt)).guard_gradients is False


def test_state_dict_holds_only_plain_values():
    _, opt = build(Case("BACDEDCAB", "circle-radii"))
    allowed = (int, float, str, bool, type(None), list, torch.Tensor)
    for group in opt.state_dict()["param_groups"]:
        assert all(type(value) in allowed for value in group.values())


# ── checkpoints that do not belong ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("saved", "own", "said"),
    [
        (Case("BAOAB", "free"), Case("OBA", "free"), "scheme BAOAB, here OBA"),
        (Case("BAOAB", "circle"), Case("BAOAB", "free"), r"constraint Circle\(radius=1.5.*here Free"),
        (Case("BAOAB", "sphere"), Case("BAOAB", "sphere-fixed"), "slack=True.*slack=False"),
    ],
)
def test_a_checkpoint_of_another_system_is_refused_and_nothing_changes(saved, own, said):
    net, opt = build(own)
    train(net, opt, 1)
    before = snapshot(net, opt)
    with pytest.raises(CheckpointError, match=said):
        opt.load_state_dict(build(saved)[1].state_dict())
    assert_equal(snapshot(net, opt), before)
    train(net, opt, 1)


def test_checkpoints_of_other_shapes_groups_or_optimizers_are_refused():
    net = Net()
    opt = Langevin(net.parameters(), 0.1)

    def refuses(other, said):
        with pytest.raises(CheckpointError, match=said):
            opt.load_state_dict(other)

    def like(shapes):
        return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]

    refuses(Langevin(like([(4, 3), (4, 3), (4, 3)]), 0.1).state_dict(), r"momentum.*\(3, 4\)")
    refuses(Langevin(like([(4, 3)]), 0.1).state_dict(), "1 parameters, this one 3")
    refuses(Langevin([{"params": [p]} for p in net.parameters()], 0.1).state_dict(), "3 parameter group")
    refuses(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9).state_dict(), "constraint")
    refuses({"weights": 1}, "not an optimizer checkpoint")


@pytest.mark.parametrize(("ours", "theirs"), [(Circle(1), Circle(1.0)), (Circle(torch.tensor(1.0)), Circle(1.0))])
def test_equal_radii_are_the_same_constraint(ours, theirs):
    saved = Langevin(Net().parameters(), 0.1, constraint=theirs).state_dict()
    opt = Langevin(Net().parameters(), 0.1, constraint=ours)
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["step"] == 0


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────


def test_state_dict_hooks_run_and_may_change_what_is_saved():
    _, opt = build(Case("BAOAB", "free"))
    seen = []
    opt.register_state_dict_pre_hook(lambda o: seen.append(o))
    opt.register_state_dict_post_hook(lambda o, saved: {**saved, "note": "kept"})
    assert opt.state_dict()["note"] == "kept"
    assert seen == [opt]


def test_load_hooks_run_and_what_the_first_returns_is_what_is_loaded():
    net, opt = build(Case("BAOAB", "free"))
    train(net, opt, 2)
    saved = opt.state_dict()

    def negated(_, loaded):
        state = {i: {k: -v for k, v in slots.items()} for i, slots in loaded["state"].items()}
        return {**loaded, "state": state}

    fresh, fresh_opt = build(Case("BAOAB", "free"))
    seen = []
    fresh_opt.register_load_state_dict_pre_hook(negated)
    fresh_opt.register_load_state_dict_post_hook(lambda o: seen.append(o.state[fresh.up]["momentum"].clone()))
    fresh_opt.load_state_dict(saved)
    assert torch.equal(fresh_opt.state[fresh.up]["momentum"], -opt.state[net.up]["momentum"])
    assert torch.equal(seen[0], fresh_opt.state[fresh.up]["momentum"])


def test_a_load_hook_may_bring_an_old_checkpoint_up_to_date():
    _, opt = build(Case("BAOAB", "free"))
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0].pop("scheme")
    opt.register_load_state_dict_pre_hook(
        lambda _, old: {**old, "param_groups": [{**g, "scheme": "BAOAB"} for g in old["param_groups"]]}
    )
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["scheme"] == "BAOAB"


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_built_on_the_checkpoints_weights_goes_on_alike(case, dtype):
    """Building it lands weights that dynamics may have left where initial ones are not welcome: loading undoes it."""
    net, opt = build(case, dtype=dtype)
    train(net, opt, 3)
    saved = through_a_file({"net": net.state_dict(), "opt": opt.state_dict()})
    train(net, opt, 4)
    other, _ = build(case, init=1, dtype=dtype)
    other.load_state_dict(saved["net"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = optimizer(case, other)
    again.load_state_dict(saved["opt"])
    train(other, again, 4)
    assert_equal(snapshot(other, again), snapshot(net, opt))


def test_weights_at_the_rim_are_the_checkpoints():
    """θ = r in the last digit is where an initial weight would feel no force, and where a rotation may pass by."""
    w = torch.nn.Parameter(torch.tensor([0.3, 1.0 - 1e-6]))
    opt = Langevin([w], 0.1, constraint=Circle(1.0))
    w.grad = torch.zeros(2)
    opt.step()
    with torch.no_grad():
        opt.state[w]["turns"][1] = 0.25
        opt.state[w]["momentum"].fill_(0.5)
        w[1] = 1.0
    saved = copy.deepcopy(opt.state_dict())
    v = torch.nn.Parameter(w.detach().clone())
    with pytest.warns(UserWarning, match="Circle: 1 of 2"):
        again = Langevin([v], 0.1, constraint=Circle(1.0))
    assert v[1] < 1
    again.load_state_dict(saved)
    assert torch.equal(v, w)
    for p, o in ((w, opt), (v, again)):
        p.grad = torch.ones(2)
        o.step()
    assert torch.equal(v, w)


def test_weights_of_somebody_else_stay_landed():
    w = torch.nn.Parameter(torch.tensor([0.3, 0.5]))
    saved = Langevin([w], 0.1, constraint=Circle(1.0)).state_dict()
    v = torch.nn.Parameter(torch.tensor([7.0, -7.0]))
    with pytest.warns(UserWarning, match="Circle: 2 of 2"):
        other = Langevin([v], 0.1, constraint=Circle(1.0))
    other.load_state_dict(saved)
    assert v.abs().max() < 1
