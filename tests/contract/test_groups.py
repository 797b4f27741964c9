"""Parameters as torch.optim takes them: iterables, groups, names; odd tensors; hooks; the printed table."""

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal
from holonom.errors import ConstraintError, NonFiniteGradientError

from .cases import COLD, Case, Net, assert_equal, backward, build, few_cases, snapshot, train

INPUTS = {
    "iterable": lambda net: net.parameters(),
    "list": lambda net: list(net.parameters()),
    "names": lambda net: net.named_parameters(),
    "groups": lambda net: [{"params": [net.up]}, {"params": [net.mid, net.down]}],
    "one tensor a group": lambda net: [{"params": p} for p in net.parameters()],
    "named groups": lambda net: [{"params": [pair]} for pair in net.named_parameters()],
    "generators": lambda net: ({"params": (p for p in [p])} for p in net.parameters()),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_all_ways_to_give_parameters_give_the_same_run(kind):
    net, opt = build(Case("BAOAB", "circle"))
    other = Net()
    other_opt = Langevin(INPUTS[kind](other), 0.1, temperature=0.01, constraint=Circle(1.5), seed=0)
    train(net, opt, 3)
    train(other, other_opt, 3)
    assert_equal(snapshot(other, other_opt), snapshot(net, opt))


def test_each_group_moves_as_it_would_alone():
    settings = [
        {"lr": 0.1, "scheme": "OBA", "friction": 2.0, "weight_decay": 0.1, "foreach": False},
        {"lr": 0.05, "scheme": "L", "constraint": Circle(1.5), "maximize": True},
        {"lr": 0.2, "scheme": "BACDEDCAB", "constraint": Orthogonal(), "coupling": 0.5},
    ]
    net, alone = Net(), Net()
    opt = Langevin([{"params": [p], **s} for p, s in zip(net.parameters(), settings, strict=True)], 1.0, **COLD)
    single = [Langevin([p], **{**COLD, **s}) for p, s in zip(alone.parameters(), settings, strict=True)]
    for _ in range(3):
        train(net, opt, 1)
        backward(alone, single[0])
        for p in (alone.mid, alone.down):
            p.grad = net.get_parameter("mid" if p is alone.mid else "down").grad.clone()
        for one in single:
            one.step()
    for p, q in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(p, q)
    assert [g["lr"] for g in opt.param_groups] == [0.1, 0.05, 0.2]
    assert [g["constraint"].split("(")[0] for g in opt.param_groups] == ["Free", "Circle", "Orthogonal"]


def test_a_group_may_go_without_the_default_constraint():
    net = Net()
    opt = Langevin([{"params": [net.up]}, {"params": [net.mid], "constraint": None}], 0.1, constraint=Circle(1.5))
    assert [g["constraint"] for g in opt.param_groups] == [repr(Circle(1.5)), "Free()"]
    assert "turns" in opt.state[net.up]
    assert "turns" not in opt.state[net.mid]


@pytest.mark.parametrize(
    "change", [{"friction": 5.0}, {"temperature": 1.0}, {"weight_decay": 1.0}, {"maximize": True}, {"seed": 1}], ids=str
)
def test_the_options_of_a_group_are_read_at_every_step(change):
    net, opt = build(Case("BAOAB", "circle"))
    other, other_opt = build(Case("BAOAB", "circle"))
    fresh, fresh_opt = build(Case("BAOAB", "circle"), **change)
    train(net, opt, 2)
    train(other, other_opt, 2)
    opt.param_groups[0].update(change)
    train(net, opt, 1)
    train(other, other_opt, 1)
    assert not torch.equal(net.up, other.up)
    first, first_opt = build(Case("BAOAB", "circle"))
    first_opt.param_groups[0].update(change)
    train(first, first_opt, 2)
    train(fresh, fresh_opt, 2)
    assert_equal(snapshot(first, first_opt), snapshot(fresh, fresh_opt))


@few_cases
def test_a_group_added_later_joins_in_and_leaves_the_others_alone(case):
    net, opt = build(case)
    extra = nn.Parameter(torch.full((4, 3), 0.5))
    plain, plain_opt = build(case)
    train(net, opt, 2)
    opt.add_param_group({"params": [("extra", extra)], "constraint": Circle(1.0), "scheme": "BAOAB", "lr": 0.01})
    assert opt.state[extra].keys() == {"momentum", "turns", "stream", "clock"}
    assert opt.param_groups[1]["step"] == 0
    for _ in range(3):
        backward(net, opt)
        extra.grad = torch.ones_like(extra)
        opt.step()
    train(plain, plain_opt, 5)
    assert_equal(snapshot(net, opt), snapshot(plain, plain_opt))
    assert (extra < 0.5).any()
    assert opt.residuals()[1] < 1e-5
    assert "extra 4×3" in repr(opt)


def test_a_group_that_is_refused_leaves_no_trace():
    net, opt = build(Case("BAOAB", "free"))
    good, bad = nn.Parameter(torch.eye(3)), nn.Parameter(torch.zeros(3))
    with pytest.raises(ConstraintError, match=r"'bad'.*only matrices"):
        opt.add_param_group({"params": [("good", good), ("bad", bad)], "constraint": Orthogonal()})
    assert len(opt.param_groups) == 1
    assert good not in opt.state
    assert opt.state_dict()["state"].keys() == {0, 1, 2}
    train(net, opt, 1)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda net: Langevin([], 0.1), ValueError, "empty parameter list"),
        (lambda net: Langevin([{"params": {net.up}}], 0.1), TypeError, "order"),
        (lambda net: Langevin([{"params": [net.up]}, {"params": [net.up]}], 0.1), ValueError, "given twice"),
        (lambda net: Langevin([net.up * 2], 0.1), ValueError, "non-leaf"),
        (lambda net: Langevin(["up"], 0.1), TypeError, "Tensors"),
        (lambda net: Langevin([("up", net.up), net.mid], 0.1), ValueError, "names"),
        (lambda net: Langevin([torch.zeros(2, dtype=torch.int64)], 0.1), TypeError, "int64"),
        (lambda net: Langevin([torch.zeros(2, dtype=torch.complex64)], 0.1), TypeError, "view_as_real"),
        (lambda net: Langevin(net.parameters(), -0.1), ValueError, r"lr \(h\).*-0.1"),
        (lambda net: Langevin(net.parameters(), float("nan")), ValueError, r"lr \(h\).*nan"),
        (lambda net: Langevin([{"params": [net.up], "friction": -1}], 0.1), ValueError, r"friction \(γ\).*-1"),
        (lambda net: Langevin(net.parameters(), 0.1, constraint="circle"), TypeError, "'circle'"),
        (lambda net: Langevin(net.parameters(), 0.1).add_param_group([net.up]), TypeError, "dict"),
    ],
)
def test_what_cannot_be_optimized_is_refused_with_a_reason(make, error, said):
    with pytest.raises(error, match=said):
        make(Net())


@pytest.mark.parametrize("named", [True, False])
def test_messages_name_the_parameter(named):
    layer = nn.Linear(3, 3)
    params = layer.named_parameters() if named else layer.parameters()
    with pytest.raises(ConstraintError, match="'bias'" if named else "parameter 1"):
        Langevin(params, 0.1, constraint=Orthogonal())


# ── hooks and the printed table ───────────────────────────────────────────────────────────────────


def test_step_hooks_run_before_and_after():
    net, opt = build(Case("BAOAB", "free"))
    start = net.up.detach().clone()
    seen = []
    before = opt.register_step_pre_hook(lambda o, args, kwargs: seen.append(torch.equal(net.up, start)))
    after = opt.register_step_post_hook(lambda o, args, kwargs: seen.append(torch.equal(net.up, start)))
    train(net, opt, 1)
    assert seen == [True, False]
    before.remove()
    after.remove()
    train(net, opt, 1)
    assert len(seen) == 2


def test_hooks_of_all_optimizers_run():
    net, opt = build(Case("BAOAB", "free"))
    seen = []
    hooks = [
        register_optimizer_step_pre_hook(lambda o, args, kwargs: seen.append("before")),
        register_optimizer_step_post_hook(lambda o, args, kwargs: seen.append("after")),
    ]
    train(net, opt, 1)
    for hook in hooks:
        hook.remove()
    train(net, opt, 1)
    assert seen == ["before", "after"]


def subclass(base, way):
    class Subclass(base):
        step = torch.no_grad()(base.step) if way == "wrapped" else base.step

    class Calling(base):
        def step(self, closure=None):
            return super().step(closure)

    return Calling if way == "called" else Subclass


@pytest.mark.parametrize("way", ["same", "wrapped", "called"])
def test_hooks_run_as_often_as_those_of_torchs_optimizers(way):
    counts = []
    for base in (torch.optim.SGD, Langevin):
        net, seen = Net(), []
        base(net.parameters(), 0.1)  # torch prepares a class when its first optimizer is built
        opt = subclass(base, way)(net.parameters(), 0.1)
        opt.register_step_pre_hook(lambda *_, seen=seen: seen.append("before"))
        train(net, opt, 1)
        counts.append(len(seen))
    assert counts[0] == counts[1] > 0


@pytest.mark.filterwarnings("error:Dynamo detected a call to:UserWarning")  # of what holonom itself does
def test_hooks_that_come_after_compiling_run():
    net, opt = build(Case("BAOAB", "free"))
    train(net, opt, 1)
    compiled = torch.compile(opt.step, backend="eager")
    compiled()
    seen = []
    opt.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    compiled()
    assert seen == ["before"]


def test_a_profiler_sees_the_step():
    net, opt = build(Case("BAOAB", "free"))
    train(net, opt, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        opt.step()
    assert "Optimizer.step#Langevin.step" in {event.key for event in profile.key_averages()}


def test_the_printed_optimizer_shows_word_program_space_numbers_and_parameters():
    net = Net()
    groups = [{"params": [("up", net.up)], "scheme": "OBA"}, {"params": [("mid", net.mid)], "constraint": Circle(1.5)}]
    shown = str(Langevin(groups, 0.25, temperature=0.01, friction=2.0))
    for fact in (
        "Langevin",
        "OBA  →  O(h) B(h) A(h)",
        "BAOAB  →  B(1/2·h⁻+1/2·h) A(1/2·h) O(h) A(1/2·h)",
        "none",
        repr(Circle(1.5)),
        "lr=0.25, temperature=0.01, friction=2",
        "up 4×3",
        "mid 3×4",
        "1 tensors, 12 parameters",
    ):
        assert fact in shown
    assert "4×3, 3×4, 4×3" in str(Langevin(Net().parameters(), 0.1))


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_gradients_are_on_or_off_after_a_step_as_before(hooked, before):
    p = nn.Parameter(torch.ones(3))
    opt = Langevin([p], 0.1)
    if hooked:
        opt.register_step_post_hook(lambda *_: None)
    seen = []

    def closure():
        seen.append(torch.is_grad_enabled())
        p.grad = torch.full_like(p, torch.nan if len(seen) > 1 else 1.0)

    with torch.set_grad_enabled(before):
        opt.step(closure)
        after_a_step = torch.is_grad_enabled()
        with pytest.raises(NonFiniteGradientError):
            opt.step(closure)
        assert [after_a_step, torch.is_grad_enabled()] == [before, before]
    assert seen == [True, True]
