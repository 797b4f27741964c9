"""Keys that a group would never read, and options that no constructor has, are refused with the nearest name."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

from holonom import Langevin, Multirate, presets
from holonom.multirate import Composite, MultirateLangevin, RandomSubsets


def weight():
    return nn.Parameter(torch.zeros(2, 2))


UNKNOWN = [
    ("contraint", "did you mean 'constraint'"),
    ("fricton", "did you mean 'friction'"),
    ("temprature", "did you mean 'temperature'"),
    ("parameter_names", "did you mean 'param_names'"),
    ("nesterov", r"SGD's plain one.*like_sgd"),
    ("every", "MultirateLangevin"),
    ("xyz", r"there are constraint, coupling, .*weight_decay"),
]


@pytest.mark.parametrize(("key", "said"), UNKNOWN)
def test_a_group_with_an_unknown_key_is_refused(key, said):
    with pytest.raises(TypeError, match=rf"group 1 has the unknown key '{key}': .*{said}"):
        Langevin([{"params": [weight()]}, {"params": [weight()], key: 1.0}], 0.1)
    opt = Langevin([weight()], 0.1)
    new = {"params": [weight()], key: 1.0}
    with pytest.raises(TypeError, match=said):
        opt.add_param_group(new)
    assert len(opt.param_groups) == len(opt.state) == 1
    assert set(new) == {"params", key}
    opt.param_groups.append(new)
    opt.param_groups[0]["params"][0].grad = torch.zeros(2, 2)
    with pytest.raises(TypeError, match=said):
        opt.step()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda p: Langevin([p], 0.1, fricton=1.0), "'fricton': did you mean 'friction'"),
        (lambda p: Langevin([p], 0.1, nesterov=True), "'nesterov': .*like_sgd"),
        (lambda p: Langevin([p], 0.1, momentum=0.9), "'momentum': give friction"),
        (lambda p: Langevin.like_sgd([p], 0.1, momentm=0.9), "'momentm': did you mean 'momentum'"),
        (lambda p: presets.sgld([p], temprature=1.0), "'temprature': did you mean 'temperature'"),
        (lambda p: presets.c_cola_ud([p], raduis=1.0), "'raduis': did you mean 'radius'"),
        (lambda p: presets.dhsgdc([[p], [weight()]], hyun=True), "'hyun': did you mean 'heun'"),
        (lambda p: presets.sgld([p], radius=1.0), "'radius': there are"),
        (lambda p: MultirateLangevin([p], 0.1, drif=True), "'drif': did you mean 'drift'"),
    ],
)
def test_an_unknown_option_is_refused(build, said):
    p = weight()
    before = torch.get_rng_state()
    with pytest.raises(TypeError, match=said):
        build(p)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", [Multirate, RandomSubsets, Composite, MultirateLangevin])
def test_multirate_groups_know_their_own_keys(kind):
    with pytest.raises(TypeError, match="'weight_decy': did you mean 'weight_decay'"):
        kind([{"params": [weight()], "weight_decy": 0.1}], 0.1)
    kind([{"params": [weight()], "weight_decay": 0.1, "name": "all"}], 0.1)


def test_names_and_what_schedulers_write_pass():
    opt = Langevin([{"params": [("w", weight())], "name": "body", "lr": 0.2}], 0.1)
    schedules.CosineAnnealingLR(opt, 10)
    schedules.OneCycleLR(opt, 0.3, total_steps=10, cycle_momentum=False)
    schedules.CyclicLR(opt, 0.1, 0.3, cycle_momentum=False)
    SWALR(opt, 0.05)
    group = {**opt.param_groups[0], "params": [("v", weight())], "constraint": None}
    del group["param_names"]
    other = Langevin([dict(group)], 0.1)
    assert other.param_groups[0]["swa_lr"] == 0.05
    opt.add_param_group(group)
    assert opt.param_groups[1]["name"] == "body"


def test_a_key_of_a_loaded_checkpoint_stays_and_may_be_copied():
    opt = Langevin([weight()], 0.1)
    saved = opt.state_dict()
    saved["param_groups"][0]["note"] = "mine"
    opt.load_state_dict(saved)
    opt.add_param_group({**opt.param_groups[0], "params": [weight()], "constraint": None})
    assert [group["note"] for group in opt.param_groups] == ["mine", "mine"]
