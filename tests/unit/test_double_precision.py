"""Double precision stays double: no hyperparameter and no thermostat loses digits on its way to a letter."""

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal

NUMBERS = {
    "lr": 0.07,
    "friction": 0.7,
    "temperature": 0.03,
    "coupling": 0.3,
    "driving_noise": 0.1,
    "weight_decay": 0.013,
}  # none of them is a float32
SPACES = {"free": None, "circle": Circle(2.0), "orthogonal": Orthogonal("batch")}


def run(word, space, numbers, fuse=False, steps=4):
    generator = torch.Generator().manual_seed(0)
    start = torch.linalg.qr(torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)).Q.contiguous()
    p = torch.nn.Parameter(start)
    opt = Langevin([p], scheme=word, constraint=SPACES[space], fuse=fuse, **{"seed": 0, **numbers})
    for _ in range(steps):
        p.grad = torch.sin(3 * p.detach())
        opt.step()
    return p.detach(), opt.state[p].get("thermostat")


def per_replica(numbers):
    return {name: torch.full((3,), value, dtype=torch.float64) for name, value in numbers.items()}


CASES = [(word, space) for space in SPACES for word in ("BAOAB", "OBA", "L")] + [("M", "free")]


@pytest.mark.parametrize(("word", "space"), CASES)
def test_numbers_per_replica_are_the_numbers(word, space):
    plain, _ = run(word, space, NUMBERS)
    tensors, _ = run(word, space, per_replica(NUMBERS))
    torch.testing.assert_close(tensors, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["friction", "temperature", "weight_decay"])
def test_one_tensor_among_numbers_changes_nothing(name):
    plain, _ = run("BAOAB", "free", NUMBERS)
    mixed, _ = run("BAOAB", "free", NUMBERS | per_replica({name: NUMBERS[name]}))
    torch.testing.assert_close(mixed, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB"])
@pytest.mark.parametrize("name", ["lr", "friction", "temperature", "coupling", "driving_noise", "weight_decay"])
def test_a_whole_number_is_the_float(word, name):
    floats, _ = run(word, "free", NUMBERS | {name: 1.0})
    whole, _ = run(word, "free", NUMBERS | {name: 1})
    assert torch.equal(whole, floats)


@pytest.mark.parametrize("word", ["BACDEDCAB", "BAFEFAB"])
@pytest.mark.parametrize("space", SPACES)
def test_a_thermostat_has_all_its_digits(space, word):
    plain, xi = run(word, space, NUMBERS)
    tensors, same = run(word, space, {name: torch.tensor(x, dtype=torch.float64) for name, x in NUMBERS.items()})
    assert xi.dtype == torch.float64
    torch.testing.assert_close(tensors, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(same, xi, rtol=0, atol=1e-12)


@pytest.mark.parametrize("word", ["BAOAB", "BACDEDCAB"])
def test_a_compiled_step_has_all_its_digits(word):
    """Without noise: normals are float32, and the compiler's are the eager ones to rounding."""
    cold = NUMBERS | {"temperature": 0.0, "driving_noise": 0.0}
    torch.testing.assert_close(run(word, "free", cold, fuse=True), run(word, "free", cold), rtol=0, atol=1e-12)
