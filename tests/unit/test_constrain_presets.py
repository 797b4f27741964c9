"""presets.adamh, muonh and normalised: what they hold, at which rates, and that they train."""

import pytest
import torch
from torch import nn

from holonom import presets
from holonom.errors import ConstraintError, PartitionError
from holonom.partitions import role


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 16)
        self.position = nn.Parameter(torch.zeros(6, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 12)

    def forward(self, x):
        return self.head(self.body(self.embedding(x) + self.position))


def language():
    torch.manual_seed(0)
    return Language()


def train(model, opt, steps):
    x = torch.randint(12, (16, 6), generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        opt.step()
    return float(loss.detach())


PRESETS = {"adamh": presets.adamh, "muonh": presets.muonh, "normalised": presets.normalised}


def names(opt, number):
    return set(opt.param_groups[number]["param_names"])


@pytest.mark.parametrize("name", PRESETS)
def test_it_trains_and_holds(name):
    model = language()
    opt = PRESETS[name](model)
    first = train(model, opt, 1)
    assert train(model, opt, 40) < first / 1.4
    assert max(opt.held.residuals().values()) < 2e-6
    opt.held.check(opt)
    assert isinstance(opt, torch.optim.Optimizer)


def test_hidden_matrices_are_held_and_the_rest_is_free():
    matrices = {name for name, p in language().body.named_parameters("body") if p.ndim == 2}
    for opt in (presets.adamh(language(), 0.02, free_lr=3e-4), presets.muonh(language(), 0.02, free_lr=3e-4)):
        assert names(opt, 0) == matrices
        assert [(group["lr"], group["weight_decay"]) for group in opt.param_groups] == [(0.02, 0.0), (3e-4, 0.0)]
    assert type(presets.muonh(language()).optimizers[0]) is torch.optim.Muon
    everything = names(presets.normalised(language()), 0)
    assert everything == matrices | {"embedding.weight", "head.weight"}


def test_packed_matrices_keep_a_norm_each():
    model = language()
    packed = model.body.layers[0].self_attn.in_proj_weight
    before = packed.detach().unflatten(0, (3, 16)).flatten(1).norm(dim=1)
    opt = presets.adamh(model)
    train(model, opt, 5)
    torch.testing.assert_close(packed.detach().unflatten(0, (3, 16)).flatten(1).norm(dim=1), before)


def test_kernels_go_to_adamw_beside_muon():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 4 * 4, 8), nn.ReLU(), nn.Linear(8, 2)]
    opt = presets.muonh(nn.Sequential(*layers))
    assert names(opt, 0) == {"3.weight"}
    assert names(opt, 1) == {"1.weight"}
    assert "2 tensors" in repr(opt.held)


def test_options_reach_the_optimizers():
    opt = presets.muonh(language(), weight_decay=0.1, adamw={"betas": (0.8, 0.9)}, ns_steps=3)
    assert opt.param_groups[0]["ns_steps"] == 3
    assert opt.param_groups[1]["betas"] == (0.8, 0.9)
    assert opt.param_groups[1]["weight_decay"] == 0.1
    assert presets.adamh(language(), fused=True).param_groups[0]["fused"] is True
    assert names(presets.adamh(language(), layers=role("attention")), 0) == {
        f"body.layers.{i}.self_attn.{kind}" for i in range(2) for kind in ("in_proj_weight", "out_proj.weight")
    }


def test_factor_scales_all_rows_once():
    model, twin = language(), language()
    presets.normalised(model, factor=2.0)
    torch.testing.assert_close(model.embedding.weight.detach(), 2 * twin.embedding.weight.detach())


def test_bad_input():
    with pytest.raises(ValueError, match="layers must be 'hidden' or 'all'"):
        presets.adamh(language(), layers="some")
    with pytest.raises(PartitionError, match="no weights to hold"):
        presets.adamh(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(PartitionError, match="muonh needs matrices for Muon"):
        presets.muonh(nn.Sequential(nn.Linear(2, 2, bias=False)), layers="all")
    model = language()
    with torch.no_grad():
        model.embedding.weight[3] = 0
    with pytest.raises(ConstraintError, match=r"'embedding.weight': 1 of 12"):
        presets.normalised(model)


@pytest.mark.parametrize("name", PRESETS)
def test_rates_that_are_none_are_refused(name):
    """torch's optimizers look at their defaults only, not at what groups have."""
    model = language()
    for options, error in (
        ({"lr": -0.1}, ValueError), ({"lr": float("nan")}, ValueError), ({"lr": "0.1"}, TypeError),
        ({"weight_decay": -0.1}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=f"{next(iter(options))} must be"):
            PRESETS[name](model, **options)
    if name != "normalised":
        with pytest.raises(ValueError, match="free_lr must be finite and at least 0, got -1"):
            PRESETS[name](model, free_lr=-1)


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(RuntimeError, match=r"has no Muon: update torch to 2\.9"):
        presets.muonh(language())
