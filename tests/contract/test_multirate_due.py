"""due(): only what is due is differentiated, and nothing else about the model or the loop changes."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.utils.flop_counter import FlopCounterMode

from holonom.multirate import Multirate, MultirateLangevin, RateError

EVERY = 4


class Net(nn.Module):
    """A deep body with batch norm and dropout, and a small head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)]
        self.body = nn.Sequential(*(copy.deepcopy(module) for _ in range(6) for module in layer))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(32, 16, generator=generator), torch.randint(3, (32,), generator=generator)


def loss(net, seed=0):
    x, y = batch(seed)
    return nn.functional.cross_entropy(net(x), y)


def build(kind=Multirate, lr=0.05, **options):
    net = Net()
    groups = [{"params": net.head.parameters()}, {"params": net.body.parameters(), "every": EVERY}]
    return net, kind(groups, lr, **options)


def train(net, opt, steps, first=0):
    for seed in range(first, first + steps):
        torch.manual_seed(seed)  # for dropout
        with opt.due():
            loss(net, seed).backward()
        opt.step()


def assert_same(a, b):
    torch.testing.assert_close(dict(a.state_dict()), dict(b.state_dict()), rtol=0, atol=0)


# ── what is saved ────────────────────────────────────────────────────────────────────────────────


def saved_bytes(net, opt):
    """What autograd keeps for the backward pass, parameters and inputs not counted."""
    known = {p.untyped_storage().data_ptr() for p in (*net.parameters(), *net.buffers())}
    kept = {}

    def pack(x):
        if x.untyped_storage().data_ptr() not in known:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with opt.due(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        value = loss(net)
        total = sum(kept.values())
        value.backward()
    opt.step()
    return total


def test_on_fast_steps_no_graph_is_kept_below_the_head():
    net, opt = build()
    slow, *fast = [saved_bytes(net, opt) for _ in range(EVERY)]
    hidden = 32 * 16 * 4  # the head's input is kept; anything of the body would be as large again
    assert len(set(fast)) == 1
    assert hidden < fast[0] < 2 * hidden
    assert slow > 15 * fast[0]
    assert saved_bytes(net, opt) == slow


def test_on_fast_steps_the_backward_pass_costs_the_head_alone():
    net, opt = build()

    def operations():
        with opt.due():
            value = loss(net)
            with FlopCounterMode(display=False) as counter:
                value.backward()
        opt.step()
        return counter.get_total_flops()

    # Per layer one product for its weight and one for its input; nobody wants the first layer's input.
    head, layer = 2 * 32 * 16 * 3, 2 * 32 * 16 * 16
    slow = 2 * head + 11 * layer
    assert [operations() for _ in range(EVERY + 1)] == [slow, *[head] * (EVERY - 1), slow]


def test_gradients_of_what_is_not_due_are_neither_computed_nor_kept():
    net, opt = build()
    for step in range(2 * EVERY):
        train(net, opt, 1)
        assert all(p.grad is not None for p in net.head.parameters())
        assert all((p.grad is not None) == (step % EVERY == 0) for p in net.body.parameters())


# ── what stays as it was ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", [0, 1])
def test_flags_are_restored_even_when_the_body_raises(step):
    net, opt = build()
    train(net, opt, step)
    net.body[0].weight.requires_grad_(False)  # the user's own choice
    before = [p.requires_grad for p in net.parameters()]

    def body():
        with opt.due():
            assert [p.requires_grad for p in net.body.parameters()] == [step == 0 and flag for flag in before[:-2]]
            assert all(p.requires_grad for p in net.head.parameters())
            raise KeyError

    with pytest.raises(KeyError):
        body()
    assert [p.requires_grad for p in net.parameters()] == before
    with pytest.raises(RateError):
        opt.step()  # the block did not end
    train(net, opt, 2)


def test_modes_and_batch_statistics_are_those_of_a_full_step():
    net, opt = build(lr=0.0)
    plain = Net()
    net.body[0].eval()
    modes = [module.training for module in net.modules()]
    for seed in range(EVERY + 2):
        torch.manual_seed(seed)
        loss(plain, seed).backward()
        train(net, opt, 1, first=seed)
    assert [module.training for module in net.modules()] == modes
    assert_same(net, plain)  # weights too: lr is 0


def test_the_optimizer_keeps_every_parameter():
    net, opt = build()
    for _ in range(EVERY + 1):
        held = {id(p) for group in opt.param_groups for p in group["params"]}
        assert held == {id(p) for p in net.parameters()}
        with opt.due():
            assert {id(p) for group in opt.param_groups for p in group["params"]} == held
            loss(net).backward()
        opt.step()


def test_drifting_weights_move_at_every_step_and_resting_ones_do_not():
    for drift in (True, False):
        net, opt = build(drift=drift)
        moved = []
        for step in range(EVERY + 1):
            before = net.body[0].weight.detach().clone()
            train(net, opt, 1, first=step)
            moved.append(not torch.equal(net.body[0].weight, before))
        assert moved == [drift or step % EVERY == 0 for step in range(EVERY + 1)]


def test_frozen_and_unused_parameters_rest():
    """No gradient at its turn: no momentum, no drift. Frozen in mid-cycle: it stops at once."""
    net, opt = build()
    idle = nn.Parameter(torch.ones(2))
    opt.param_groups[1]["params"].append(idle)
    opt.state[idle] = {"momentum": torch.ones(2)}
    train(net, opt, 2)
    assert torch.equal(idle, torch.ones(2))
    assert opt.param_groups[1]["resting"] == [24]
    weight = net.body[0].weight.requires_grad_(False)
    before = weight.detach().clone()
    train(net, opt, EVERY)
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    train(net, opt, EVERY)
    assert not torch.equal(weight, before)


def test_a_group_that_is_frozen_as_a_whole_rests_without_complaint():
    net, opt = build()
    net.body.requires_grad_(False)
    before = copy.deepcopy(net.body.state_dict())
    train(net, opt, EVERY + 1)
    for name, p in net.body.named_parameters():
        assert torch.equal(p, before[name])


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [Multirate, MultirateLangevin])
@pytest.mark.parametrize("blocks", [1, 3])
def test_accumulated_gradients_make_one_step(kind, blocks):
    """Several backward passes in one block, or several blocks before a step; nothing of the last step is added."""
    net, opt = build(kind)
    whole, whole_opt = build(kind)
    for step in range(EVERY + 2):
        with whole_opt.due():
            sum(loss(whole.eval(), seed) for seed in range(3)).backward()
        whole_opt.step()
        for block in range(blocks):
            with opt.due():
                for seed in range(3) if blocks == 1 else [block]:
                    loss(net.eval(), seed).backward()
        assert opt.param_groups[0]["clock"] == step
        opt.step()
    torch.testing.assert_close(dict(net.named_parameters()), dict(whole.named_parameters()), rtol=1e-5, atol=1e-6)


def test_zero_grad_in_any_usual_place_changes_nothing():
    nets = []
    for where in ("nowhere", "before", "inside", "after"):
        net, opt = build()
        for seed in range(EVERY + 2):
            torch.manual_seed(seed)
            if where == "before":
                opt.zero_grad()
            with opt.due():
                if where == "inside":
                    opt.zero_grad()
                loss(net, seed).backward()
            opt.step()
            if where == "after":
                net.zero_grad()
        nets.append(net)
    for net in nets[1:]:
        assert_same(net, nets[0])


def test_a_closure_needs_no_due_and_may_have_one():
    net, opt = build()
    train(net, opt, EVERY + 2)
    for nested in (False, True):
        other, other_opt = build()
        for seed in range(EVERY + 2):
            torch.manual_seed(seed)

            def closure(net=other, opt=other_opt, seed=seed, nested=nested):
                if not nested:
                    value = loss(net, seed)
                    value.backward()
                    return value
                with opt.due():
                    value = loss(net, seed)
                    value.backward()
                return value

            assert other_opt.step(closure).requires_grad
        assert_same(other, net)


@pytest.mark.parametrize("nested", [False, True])
def test_a_closure_that_is_called_again_leaves_nothing_behind(nested):
    """Without drift the fast gradient is taken twice at slow steps; afterwards no block counts as open or ended."""
    net, opt = build(drift=False)
    seen = []

    def closure():
        with opt.due() if nested else contextlib.nullcontext():
            seen.append([p.requires_grad for p in (net.body[0].weight, net.head.weight)])
            value = loss(net)
            value.backward()
        return value

    for _ in range(EVERY):
        opt.step(closure)
    assert seen == [[True, True], [False, True], *[[False, True]] * (EVERY - 1)]
    with pytest.raises(RateError):
        opt.step()


def test_gradients_are_only_read():
    net, opt = build(weight_decay=0.1)
    with opt.due():
        loss(net).backward()
    before = {p: (p.grad, p.grad.clone()) for p in net.parameters()}
    opt.step()
    for p, (same, value) in before.items():
        assert p.grad is same
        assert torch.equal(p.grad, value)


# ── scaling and compiling ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", [Multirate, MultirateLangevin])
def test_a_grad_scaler_leaves_out_a_step_and_the_slow_turn_comes_again(kind, unscale):
    net, opt = build(kind)
    plain, plain_opt = build(kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    clocks = []
    for attempt in range(EVERY + 3):
        overflow = attempt in (0, 2)
        torch.manual_seed(attempt)
        with opt.due():
            scaler.scale(loss(net, attempt) * (float("inf") if overflow else 1.0)).backward()
        if unscale:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        clocks.append(opt.param_groups[0]["clock"])
        torch.manual_seed(attempt)
        if overflow:
            loss(plain, attempt)  # batch statistics and dropout go on
        else:
            train(plain, plain_opt, 1, first=attempt)
    assert clocks == [0, 1, 1, 2, 3, 4, 5]
    assert scaler.get_scale() == 2.0**8
    torch.testing.assert_close(dict(net.state_dict()), dict(plain.state_dict()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_has_one_graph_per_pattern_and_the_same_gradients(backend):
    torch.compiler.reset()
    net, opt = build()
    plain, plain_opt = build()
    compiles, inner = [], lookup_backend(backend)

    def count(module, inputs):
        compiles.append(1)
        return inner(module, inputs)

    compiled = torch.compile(net, backend=count)
    for seed in range(2 * EVERY + 1):
        torch.manual_seed(seed)
        with opt.due():
            loss(compiled, seed).backward()
        opt.step()
        train(plain, plain_opt, 1, first=seed)
    torch.testing.assert_close(dict(net.state_dict()), dict(plain.state_dict()), rtol=1e-5, atol=1e-6)
    assert len(compiles) == 2
    torch.compiler.reset()
