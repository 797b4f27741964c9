"""What a user changes between two runs of a compiled training loop reaches the next step, as it does uncompiled."""

import pytest
import torch

from holonom import Ensemble, presets
from holonom._training import stepper as module
from holonom._training.graphs import _same as same
from holonom._training.stepper import Stepper
from holonom.batches import Shuffled

from .test_training import loss, make_tiny

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    """Programs run as the Python they are made from: what they are given is what is tested here."""
    monkeypatch.setattr(module, "compile_step", lambda function, options: function)


def stepper(compiled, **options):
    ensemble = Ensemble(make_tiny, 2, seed=0)
    x = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0))
    batches = Shuffled(x, (x[..., 0] > 0).float(), 4, ensemble.seeds, own_data=True)
    return Stepper(ensemble, presets.c_cola_od(ensemble, 0.05, 1.0, **options), loss, batches, compiled)


def fill(found):
    with torch.no_grad():
        for p in found.ensemble.parameters():
            p.fill_(0.01)


def scale_data(found):
    for p in found.ensemble.parameters():
        p.data.mul_(0.3)


def set_to(**settings):
    def change(found):
        for group in found.optimizer.param_groups:
            group.update(settings)

    return change


CHANGES = {
    "weights": fill,
    "weights, through .data": scale_data,
    "lr": set_to(lr=0.2),
    "maximize": set_to(maximize=True),
    "temperature": set_to(temperature=0.0),
    "weight decay": set_to(weight_decay=0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_reaches_the_whole_step(change):
    ends = []
    for compiled in (False, True):
        found = stepper(compiled, temperature=1e-3)
        found.run(found.batches.order(0))
        CHANGES[change](found)
        found.run(found.batches.order(1))
        assert (found._whole is not None) == compiled
        ends.append([p.detach().clone() for p in found.ensemble.parameters()])
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


def test_a_graph_is_bound_to_the_model_and_to_where_tensors_are():
    """A graph would go on running the model's old numbers, and reading memory that nothing writes."""
    found = stepper("gradients", temperature=1e-3)
    found.run(found.batches.order(0))
    before = found._constants()
    found.run(found.batches.order(1))
    assert same(before, found._constants())
    found.ensemble.template.number = 2.0
    found.run(found.batches.order(2))
    assert not same(before, found._constants())
    before = found._constants()
    old = [p.data for p in found.ensemble.parameters()]
    for p in found.ensemble.parameters():
        p.data = p.data.clone()
    found.run(found.batches.order(3))
    assert not same(before, found._constants()), old


def test_what_a_step_refuses_is_refused_here():
    found = stepper(True)
    found.run(found.batches.order(0))
    set_to(lr=-0.1)(found)
    with pytest.raises(ValueError, match="lr"):
        found.run(found.batches.order(1))
