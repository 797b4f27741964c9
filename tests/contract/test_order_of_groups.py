"""A checkpoint whose groups or parameters stand in another order is matched by the names it holds."""

import copy

import pytest
import torch
from torch import nn

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal
from holonom.errors import CheckpointError
from holonom.multirate import MultirateLangevin

from .cases import Net, assert_equal, snapshot, train

SETTINGS = {
    "attention": {"constraint": Circle(1.5), "scheme": "BACDEDCAB", "lr": 0.05},
    "rest": {"constraint": None, "scheme": "BAOAB", "lr": 0.1},
    "orthogonal": {"constraint": Orthogonal(), "scheme": "BAOAB", "lr": 0.02},
}


class Wide(Net):
    """Two weights more, so that groups have several."""

    def __init__(self, init=0):
        super().__init__(init=init)
        generator = torch.Generator().manual_seed(10 + init)
        self.near, self.far = (nn.Parameter(0.1 * torch.randn(4, 3, generator=generator)) for _ in range(2))

    def forward(self, x):
        return super().forward(x) + x @ (self.near + self.far).mT


def build(net, order, **options):
    chosen = {"attention": ["near", "far"], "rest": ["up", "mid"], "orthogonal": ["down"]}
    groups = []
    for name, backwards in order:
        names = chosen[name][::-1] if backwards else chosen[name]
        groups.append({"params": [(n, net.get_parameter(n)) for n in names], **SETTINGS[name]})
    return Langevin(groups, 0.1, temperature=0.01, **options)


def by_name(net, opt):
    """Weights and state; a group's thermostat lies with whichever parameter comes first."""
    return {name.replace("near.th", "th").replace("far.th", "th"): x for name, x in snapshot(net, opt).items()}


STRAIGHT = [("attention", False), ("rest", False), ("orthogonal", False)]


@pytest.mark.parametrize(
    "order",
    [
        [("orthogonal", False), ("attention", False), ("rest", False)],
        [("attention", True), ("rest", True), ("orthogonal", False)],
        [("rest", True), ("orthogonal", False), ("attention", True)],
    ],
    ids=["groups", "parameters", "both"],
)
@pytest.mark.parametrize("first_version", [False, True])
def test_a_run_goes_on_bit_equal_in_another_order(order, first_version):
    """The first version's noise streams were the places in its order."""
    net = Wide()
    opt = build(net, STRAIGHT)
    train(net, opt, 3)
    saved, weights = copy.deepcopy(opt.state_dict()), copy.deepcopy(net.state_dict())
    if first_version:
        for own in saved["state"].values():
            del own["stream"]
    train(net, opt, 3)
    other = Wide(init=1)
    other.load_state_dict(weights)
    again = build(other, order)
    again.load_state_dict(saved)
    assert [g["lr"] for g in again.param_groups] == [SETTINGS[name]["lr"] for name, _ in order]
    train(other, again, 3)
    assert_equal(by_name(other, again), by_name(net, opt))
    back = build(Wide(), STRAIGHT)
    back.load_state_dict(again.state_dict())


@pytest.mark.parametrize("wrappers", ["module._orig_mod.", "_orig_mod.module.", "_orig_mod."])
def test_wrapped_models_have_the_same_parameters(wrappers):
    net, other = Wide(), Wide()
    opt = Langevin(net.named_parameters(), 0.1)
    names = [f"{wrappers}{name}" for name, _ in other.named_parameters()][::-1]
    again = Langevin(list(zip(names, list(other.parameters())[::-1], strict=True)), 0.1)
    train(net, opt, 1)
    again.load_state_dict(opt.state_dict())
    assert torch.equal(again.state[other.near]["momentum"], opt.state[net.near]["momentum"])


def test_other_names_are_refused_with_what_to_do():
    p, q = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    saved = Langevin([("encoder.weight", p), ("bias", q)], 0.1).state_dict()
    opt = Langevin([("body.weight", p), ("bias", q)], 0.1)
    before = copy.deepcopy(opt.state_dict()["param_groups"])
    said = "only in the checkpoint 'encoder.weight'; only here 'body.weight'. .*delete 'param_names'"
    with pytest.raises(CheckpointError, match=said):
        opt.load_state_dict(saved)
    assert opt.state_dict()["param_groups"] == before
    del saved["param_groups"][0]["param_names"]
    opt.load_state_dict(saved)


def test_other_groups_of_the_same_names_are_refused():
    names = ["a", "b", "c", "d"]
    params = {name: nn.Parameter(torch.zeros(2)) for name in names}

    def build(*parts):
        return Langevin([{"params": [(n, params[n]) for n in part]} for part in parts], 0.1)

    saved = build("ab", "cd").state_dict()
    with pytest.raises(CheckpointError, match="no group of the checkpoint has the parameters of group 0, 'a', 'c'"):
        build("ac", "bd").load_state_dict(saved)


def test_without_names_the_order_decides():
    p, q = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    opt = Langevin([{"params": [p], "lr": 0.1}, {"params": [q], "lr": 0.2}], 0.1)
    other = Langevin([{"params": [("q", q)], "lr": 0.2}, {"params": [("p", p)], "lr": 0.1}], 0.1)
    other.load_state_dict(opt.state_dict())
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.2]


def test_parameters_that_rest_are_found_by_name():
    params = {name: nn.Parameter(torch.zeros(2)) for name in "abc"}

    def build(slow):
        groups = [{"params": [("c", params["c"])]}, {"params": [(n, params[n]) for n in slow], "every": 3}]
        return MultirateLangevin(groups, 0.1)

    opt = build("ab")
    with opt.due():
        (params["c"].sum() + params["a"].sum()).backward()
    opt.step()
    assert opt.param_groups[1]["resting"] == [1]
    again = build("ba")
    again.load_state_dict(opt.state_dict())
    assert again.param_groups[1]["resting"] == [0]
