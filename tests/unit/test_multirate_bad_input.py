"""What multirate optimizers refuse, and what they say."""

import pytest
import torch
from torch import nn

from holonom import CheckpointError, PartitionError, SchemeError
from holonom.multirate import Multirate, MultirateLangevin, MultirateWrapper, RateError


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def two(net, **options):
    return Multirate([{"params": net[2].parameters()}, {"params": net[0].parameters(), "every": 3}], 0.1, **options)


def backward(net, *, detach=False):
    hidden = net[1](net[0](torch.ones(2, 2)))
    net[2](hidden.detach() if detach else hidden).sum().backward()


@pytest.mark.parametrize("kind", [Multirate, MultirateLangevin])
@pytest.mark.parametrize(("first", "second"), [(2, 3), (4, 6), (6, 4)])
def test_periods_that_do_not_divide(kind, first, second):
    params = [{"params": [nn.Parameter(torch.ones(1))], "every": every} for every in (1, first, second)]
    with pytest.raises(ValueError, match=f"periods {first} and {second} do not divide"):
        kind(params, 0.1)


@pytest.mark.parametrize("every", [0, -1, 2.5, "5", True, None])
def test_a_period_is_a_whole_number(every):
    with pytest.raises(ValueError, match="whole number"):
        Multirate([{"params": [nn.Parameter(torch.ones(1))], "every": every}], 0.1)


def test_some_group_must_be_due_at_every_step():
    groups = [{"params": [nn.Parameter(torch.ones(1))], "every": every} for every in (2, 6)]
    with pytest.raises(ValueError, match=r"no group has every=1.*Divide all periods by 2"):
        Multirate(groups, 0.1)


def test_empty_groups(net):
    body = net[0].parameters()
    list(body)  # used up
    with pytest.raises(ValueError, match=r"group 1 has no parameters.*only once"):
        Multirate([{"params": net[2].parameters()}, {"params": body, "every": 5}], 0.1)
    with pytest.raises(ValueError, match="empty"):
        Multirate([], 0.1)


def test_a_parameter_in_two_groups_or_twice_in_one(net):
    with pytest.raises(ValueError, match="given twice"):
        Multirate([{"params": net.parameters()}, {"params": net[0].parameters(), "every": 5}], 0.1)
    with pytest.raises(ValueError, match="given twice"):
        Multirate([{"params": [net[0].weight, net[0].weight]}], 0.1)


def test_a_parameter_in_no_group(net):
    groups = [{"params": [net[2].weight]}, {"params": net[0].parameters(), "every": 5}]
    with pytest.raises(PartitionError, match=r"no group has '2.bias'"):
        Multirate(groups, 0.1, model=net)
    net[2].bias.requires_grad_(False)
    Multirate(groups, 0.1, model=net)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"lr": -1.0}, "lr"), ({"momentum": -0.1}, "momentum"), ({"weight_decay": float("nan")}, "weight_decay")],
)
def test_bad_numbers(options, said):
    with pytest.raises(ValueError, match=said):
        Multirate([nn.Parameter(torch.ones(1))], **{"lr": 0.1, **options})
    with pytest.raises(TypeError, match="lr must be a number"):
        Multirate([nn.Parameter(torch.ones(1))], "fast")


def test_groups_that_are_none(net):
    opt = two(net)
    with pytest.raises(TypeError, match="dict"):
        opt.add_param_group([nn.Parameter(torch.ones(1))])
    with pytest.raises(TypeError, match="list instead of a set"):
        opt.add_param_group({"params": {nn.Parameter(torch.ones(1))}})


def test_a_step_without_due(net):
    opt = two(net)
    backward(net)
    with pytest.raises(RateError, match=r"with opt.due\(\)"):
        opt.step()
    with opt.due():
        backward(net)
    opt.step()
    with pytest.raises(RateError, match=r"with opt.due\(\)"):
        opt.step()  # the gradients of the last block are spent


def test_a_step_inside_due(net):
    opt = two(net)
    with opt.due():
        backward(net)
        with pytest.raises(RateError, match="end the block"):
            opt.step()
    assert all(p.requires_grad for p in net.parameters())


def test_a_step_without_backward(net):
    opt = two(net)
    with opt.due():
        pass
    with pytest.raises(RateError, match="no gradient on any parameter"):
        opt.step()


def test_a_slow_group_without_gradients_at_its_turn(net):
    opt = two(net)
    before = [p.detach().clone() for p in net.parameters()]
    with opt.due():
        backward(net, detach=True)
    with pytest.raises(RateError, match=r"group 1 \(every=3\) is due at step 0.*none of its 2 parameters"):
        opt.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    assert opt.param_groups[0]["clock"] == 0


def test_overdamped_words_have_nothing_to_drift_with(net):
    slow = {"params": net[0].parameters(), "every": 5, "scheme": "L"}
    with pytest.raises(SchemeError, match="no momentum to drift with"):
        MultirateLangevin([{"params": net[2].parameters()}, slow], 0.1)
    MultirateLangevin([{"params": net[2].parameters()}, {**slow, "params": net[0].parameters(), "drift": False}], 0.1)


def test_checkpoints_of_other_optimizers(net):
    opt = two(net)
    with pytest.raises(CheckpointError, match="no multirate optimizer wrote it"):
        opt.load_state_dict(torch.optim.SGD(net.parameters(), 0.1).state_dict())


def test_a_checkpoint_of_another_kind(net):
    wrapped = MultirateWrapper(
        [
            {"optimizer": torch.optim.SGD(net[2].parameters(), 0.1)},
            {"optimizer": torch.optim.SGD(net[0].parameters(), 0.1)},
        ]
    )
    saved = {key: value for key, value in wrapped.state_dict().items() if key != "optimizers"}
    with pytest.raises(CheckpointError, match="another kind of multirate optimizer than Multirate wrote it"):
        two(net).load_state_dict(saved)


def test_an_optimizer_that_wants_several_gradients(net):
    with pytest.raises(TypeError, match="LBFGS takes several gradients a step"):
        MultirateWrapper([torch.optim.LBFGS(net.parameters())])


def test_a_scale_may_be_an_optimizer_alone(net):
    opt = MultirateWrapper([torch.optim.SGD(net.parameters(), 0.1)], model=net)
    with opt.due():
        backward(net)
    before = net[0].weight.detach().clone()
    opt.step()
    assert not torch.equal(before, net[0].weight)
