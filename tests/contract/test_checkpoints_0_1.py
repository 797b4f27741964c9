"""Checkpoints of version 0.1.0 load, and a run continues from them as 0.1.0 itself continued it.

``tests/data/make_checkpoints_0_1.py`` says how they were made and what a record holds.
"""

import io
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from holonom import Langevin

from ..data.make_checkpoints_0_1 import PATH, STEPS_AFTER, build, copied, outcome, step, turn_off_noise

RECORDS: dict[str, Any] = torch.load(PATH, weights_only=True)
NOISY = [name for name, own in RECORDS.items() if own["recipe"]["options"].get("temperature") is not None]

every_record = pytest.mark.parametrize("name", RECORDS)


def loaded(record: dict[str, Any]) -> tuple[list[torch.nn.Parameter], Any]:
    """The record's optimizer on its weights with its state; loading is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Dynamics may leave weights where initial ones are moved from. Loading puts them back.
        warnings.filterwarnings("ignore", "weights that did not satisfy their constraint", UserWarning)
        warnings.filterwarnings("ignore", ".* samples positions at .* the temperature", UserWarning)  # words then usual
        warnings.filterwarnings("ignore", ".* weights are rounded to themselves", UserWarning)
        params, opt = build(copied(record["recipe"]), record["weights"])
        keys = [set(group) for group in opt.param_groups]
        opt.load_state_dict(copied(record["saved"]))
    assert all(own <= set(group) for own, group in zip(keys, opt.param_groups, strict=True))
    return params, opt


def tolerance(name: str) -> float:
    if "bfloat16" in name:
        return 2e-2
    return 1e-5 if "orthogonal" in name else 2e-6


def tangent(chord: Tensor, weight: Tensor) -> Tensor:
    """Π·chord, in double precision. The rest of a chord is normal, and a drift ignores it."""
    wide = weight.shape[-2] < weight.shape[-1]
    q, p = (x.double().mT if wide else x.double() for x in (weight, chord))
    y = q.mT @ p
    p = p - q @ (y + y.mT) / 2
    return p.mT if wide else p


def assert_agree(name: str, actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Weights, and all state that 0.1.0 wrote; what later versions add is theirs."""
    within = {"rtol": tolerance(name), "atol": tolerance(name)}
    for p, q in zip(actual["weights"], expected["weights"], strict=True):
        assert p.dtype == q.dtype
        torch.testing.assert_close(p.double(), q.double(), **within)
    for ours, theirs in zip(actual["states"], expected["states"], strict=True):
        assert theirs.keys() <= ours.keys()
        for i, slots in theirs.items():
            assert slots.keys() <= ours[i].keys()
            for slot, value in slots.items():
                x, y = ours[i][slot], value
                assert (x.dtype, x.shape) == (y.dtype, y.shape), slot
                if slot == "chord":
                    x, y = tangent(x, actual["weights"][i]), tangent(y, expected["weights"][i])
                torch.testing.assert_close(x.double(), y.double(), **within, msg=lambda m, s=slot: f"{s}: {m}")


def test_every_kind_of_state_is_there():
    """Of spaces, words and optimizers: a file cut short would test less in silence."""
    assert len(RECORDS) == 87
    slots = {slot for record in RECORDS.values() for own in record["saved"]["state"].values() for slot in own}
    momenta, extended = {"momentum", "spin", "chord", "last_noise"}, {"turns", "slack", "slack_momentum"}
    assert slots == momenta | extended | {"thermostat", "clock", "velocity"}


@every_record
def test_a_loaded_checkpoint_is_what_was_saved(name):
    record = RECORDS[name]
    params, opt = loaded(record)
    for p, saved in zip(params, record["weights"], strict=True):
        assert torch.equal(p, saved)
    written = [record["saved"], *record["saved"].get("optimizers", [])]
    assert_agree(name, outcome(params, opt), {"weights": record["weights"], "states": [x["state"] for x in written]})
    for group, saved in zip(opt.param_groups, record["saved"]["param_groups"], strict=True):
        if name == "like-sgd":  # 0.1.0 kept a time step and a friction
            assert (group["lr"], group["friction"]) == (saved["lr"] ** 2, None)
            assert group["momentum"] == math.exp(-saved["friction"] * saved["lr"])
            continue
        for option in saved.keys() & {"lr", "friction", "temperature", "every", "momentum"}:
            torch.testing.assert_close(group[option], saved[option], rtol=0, atol=0)


@every_record
@pytest.mark.parametrize("generation", [1, 2])
def test_without_noise_a_run_continues_as_version_0_1_0_did(name, generation):
    """From the file, and from a checkpoint that the present version made of it."""
    record = RECORDS[name]
    params, opt = loaded(record)
    if generation == 2:
        buffer = io.BytesIO()
        torch.save(opt.state_dict(), buffer)
        buffer.seek(0)
        params, opt = loaded({**record, "saved": torch.load(buffer, weights_only=True)})
    turn_off_noise(opt)
    for number in range(STEPS_AFTER):
        step(params, opt, number)
    assert_agree(name, outcome(params, opt), record["after"])


@pytest.mark.parametrize("name", NOISY)
def test_with_noise_a_run_continues_on_its_manifold(name):
    record = RECORDS[name]
    params, opt = loaded(record)
    for number in range(STEPS_AFTER):
        step(params, opt, number)
    assert isinstance(opt, Langevin)
    opt.check()
    for p, cold in zip(params, record["after"]["weights"], strict=True):
        assert bool(p.isfinite().all())
        assert not torch.equal(p, cold)
