"""Predicted speed-ups: the arithmetic from given costs, and measured ones with operations for seconds."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from holonom import PartitionError
from holonom.multirate import Cost, Multirate, Plan, plan


def row(steps, **parts):
    parts = {"forward": 0.0, "backward": 0.0, "update": 0.0, **parts}
    return tuple(Cost(f"layer {i}", 1, step=step, **parts) for i, step in enumerate(steps))


@pytest.mark.parametrize("every", [2, 5, 10])
@pytest.mark.parametrize("fast", [1, 2, 7])
def test_equal_layers_and_backward_passes_alone_give_the_thesis_s_formula(every, fast):
    """(5.6): kL/(L + (k − 1)ℓ) with ℓ fast layers of L = 8."""
    made = Plan(row([8 - i for i in range(8)]), (every,))
    assert made.speedup(f"layer {8 - fast}", every) == pytest.approx(every * 8 / (8 + (every - 1) * fast))


def test_whole_steps_count():
    made = Plan(row([3.5, 1.5]), (5,))
    assert made.speedup("layer 1", 5) == pytest.approx(5 * 3.5 / (3.5 + 4 * 1.5))
    assert made.speedup("layer 0", 5) == 1
    assert made.rows()[1]["speedup"] == {5: made.speedup("layer 1", 5)}


def test_the_table_shows_every_split_and_period():
    text = str(Plan(row([0.02, 0.01], forward=0.005), (2, 5)))
    assert "k=2" in text
    assert "k=5" in text
    first = ["layer", "0", "1", "5.00ms", "0.00ms", "0.00ms", "20.00ms", "1.00×", "1.00×"]
    assert text.splitlines()[1].split() == first
    with pytest.raises(KeyError, match="layer 0, layer 1"):
        Plan(row([2.0, 1.0]), (2,)).speedup("head", 2)


class Branched(nn.Module):
    """Registered in another order than called, with a parameter of its own, batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.1))
        self.neck = nn.Linear(64, 16)
        self.shift = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.head(self.neck(self.body(x + self.shift)))


def test_blocks_come_in_the_order_of_the_forward_pass():
    made = plan(Branched(), torch.randn(4, 8), repeats=1, verbose=False)
    assert [cost.block for cost in made.costs] == ["body.0", "body.2", "body.3", "neck", "head"]
    sizes = [8 * 64 + 64 + 8, 64 * 64 + 64, 128, 64 * 16 + 16, 16 * 3 + 3]  # the shift belongs to the first
    assert [cost.parameters for cost in made.costs] == [sum(sizes[i:]) for i in range(5)]


def test_named_blocks_inputs_by_name_and_a_loss():
    made = plan(
        Branched(),
        {"x": torch.randn(4, 8)},
        loss=lambda out: nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 0])),
        blocks=["body", "head"],
        repeats=1,
        verbose=False,
    )
    assert [cost.block for cost in made.costs] == ["body", "head"]


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = Branched()
    model(torch.randn(4, 8)).sum().backward()
    model.shift.requires_grad_(False)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    rng = torch.get_rng_state()
    plan(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), repeats=2, verbose=False)
    torch.testing.assert_close(dict(model.state_dict()), state, rtol=0, atol=0)
    assert all(p.grad is gradients[name] for name, p in model.named_parameters())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    assert torch.equal(torch.get_rng_state(), rng)


def test_the_prediction_is_what_training_then_costs(capsys):
    """Operations instead of seconds: no noise, so prediction and fact agree to the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(5)), nn.Linear(32, 4))
    x = torch.randn(16, 32)
    with FlopCounterMode(display=False) as counter:
        made = plan(model, x, repeats=2, clock=lambda: float(counter.get_total_flops()))
    assert "fast from" in capsys.readouterr().out

    def spent(groups, steps):
        opt = Multirate(groups, lr=1e-3)
        with FlopCounterMode(display=False) as counter:
            for _ in range(steps):
                with opt.due():
                    model(x).square().mean().backward()
                opt.step()
        return counter.get_total_flops()

    whole = spent([{"params": model.parameters()}], 10)
    for first, every in ((5, 5), (3, 2), (1, 10)):
        split = [{"params": model[first:].parameters()}, {"params": model[:first].parameters(), "every": every}]
        assert made.speedup(str(first), every) == pytest.approx(whole / spent(split, 10), rel=1e-12)
    for cost in made.costs:
        assert cost.forward + cost.backward + cost.update == cost.step


def test_nothing_to_split():
    with pytest.raises(PartitionError, match="nothing to split"):
        plan(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(PartitionError, match="no module 'tail'"):
        plan(Branched(), torch.randn(4, 8), blocks=["tail", "head"])


def test_an_output_without_tensors_needs_a_loss():
    class Wordy(nn.Sequential):
        def forward(self, x):
            return {"text": "hello", "x": super().forward(x).detach()}

    with pytest.raises(ValueError, match="loss="):
        plan(Wordy(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(1, 2))
