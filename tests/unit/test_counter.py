"""Counter-based draws: the published generator, the right law, and one stream per seed."""

import math

import pytest
import torch
from holonom.counter import Normals, compiled, philox, uniforms

# Known answers published with the generator (Random123's kat_vectors, philox4x32-10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEEDS = torch.tensor([3, 2**62 + 1, 5, 3])


def draw(seeds=SEEDS, step=7, number=0, shape=(5,), dtype=torch.float32, parameter=0, part=0):
    spec = (torch.Size((*seeds.shape, *shape)), dtype, parameter, part)
    return Normals([spec], seeds.ndim, torch.device("cpu"))(seeds, torch.tensor(step), number)[0]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    found = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(w) for w in found) == words


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_and_tails(dtype):
    x = draw(torch.arange(8), shape=(50_000,), dtype=dtype).double()
    count = x.numel()
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(x.pow(power).mean() - expected) < 5 * math.sqrt(variance / count)
    for edge in (0.5, 1.0, 2.0, 3.0):
        share = math.erfc(edge / math.sqrt(2))
        assert abs((x.abs() > edge).double().mean() - share) < 5 * math.sqrt(share / count)
    assert abs((x[:, 1:] * x[:, :-1]).mean()) < 5 / math.sqrt(count)


def test_equal_seeds_draw_alike_and_others_do_not():
    x = draw()
    assert torch.equal(x[0], x[3])
    assert not torch.isclose(x[0], x[1]).any()


def test_every_part_of_the_key_matters():
    base = draw()
    for other in (draw(step=8), draw(number=1), draw(parameter=1), draw(part=1), draw(number=-1)):
        assert not torch.isclose(base, other).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_seed_alone_draws_its_row(dtype):
    rows = draw(shape=(3, 7), dtype=dtype)
    for seed, row in zip(SEEDS, rows, strict=True):
        assert torch.equal(draw(seed, shape=(3, 7), dtype=dtype), row)


def test_uniforms_are_uniform_and_never_the_ends():
    u = uniforms(100_001, torch.tensor([1, 2]), torch.tensor(0), 9)
    assert u.shape == (2, 100_001)
    assert u.min() > 0
    assert u.max() < 1
    counts = torch.histc(u.flatten(), 20, 0, 1)
    expected = u.numel() / 20
    assert ((counts - expected) ** 2 / expected).sum() < 19 + 5 * math.sqrt(2 * 19)


def test_compiled_draws_are_the_same_draws():
    step = torch.tensor(7)
    assert torch.equal(compiled(uniforms)(13, SEEDS, step, 9), uniforms(13, SEEDS, step, 9))
    specs = [(torch.Size((4, 3, 7)), torch.float32, 0, 0), (torch.Size((4, 5)), torch.float64, 1, 1)]
    normals = Normals(specs, 1, torch.device("cpu"))
    for fast, plain in zip(compiled(Normals.__call__)(normals, SEEDS, step, 2), normals(SEEDS, step, 2), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-6)


def test_a_tensors_draw_does_not_depend_on_its_company():
    specs = [(torch.Size((4, n)), dtype, n, 0) for n in (3, 8, 1) for dtype in (torch.float32, torch.float64)]
    together = Normals(specs, 1, torch.device("cpu"))(SEEDS, torch.tensor(7), 0)
    for (shape, dtype, parameter, part), x in zip(specs, together, strict=True):
        assert x.dtype == dtype
        assert torch.equal(x, draw(shape=shape[1:], dtype=dtype, parameter=parameter, part=part))
