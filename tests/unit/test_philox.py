"""The generator: published answers, the right law, one stream per seed, and a layout that depends on the key alone."""

import math

import pytest
import torch

from holonom import Langevin
from holonom._backends.inductor import compiled_normals
from holonom._random.philox import Layout, as_seed, normals, philox, uniforms

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
CPU = torch.device("cpu")


def draw(seeds=SEEDS, step=7, number=0, shape=(5,), stream=0):
    return Layout([torch.Size(shape)], [stream], CPU).draw(seeds, torch.tensor(step), number)[0]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    found = philox(counter, tuple(map(torch.tensor, key)))
    assert tuple(int(w) for w in found) == words


def test_moments_and_tails():
    x = draw(torch.arange(8), shape=(50_000,)).double()
    count = x.numel()
    for power, expected, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(x.pow(power).mean() - expected) < 5 * math.sqrt(variance / count)
    for edge in (0.5, 1.0, 2.0, 3.0, 4.0):
        share = math.erfc(edge / math.sqrt(2))
        assert abs((x.abs() > edge).double().mean() - share) < 5 * math.sqrt(share / count)
    for apart in (1, 32, 64, 96):  # the four normals of a block are 32 elements apart
        assert abs((x[:, apart:] * x[:, :-apart]).mean()) < 5 / math.sqrt(count)


def test_the_largest_normals_are_those_of_32_bits():
    """−2 ln u with the smallest u, ½·2⁻³²: a generator with fewer bits would cut the tails."""
    assert draw(torch.arange(400), shape=(25_000,)).abs().max() > 4.9


def test_equal_seeds_draw_alike_and_others_do_not():
    x = draw()
    assert torch.equal(x[0], x[3])
    assert not torch.isclose(x[0], x[1]).any()


@pytest.mark.parametrize("change", [{"step": 8}, {"number": 1}, {"number": -1}, {"stream": 1}, {"stream": 2}], ids=str)
def test_every_part_of_the_key_matters(change):
    assert not torch.isclose(draw(), draw(**change)).any()


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63, 2**64 - 1, -(2**63), 2**64 + 7])
def test_whole_numbers_are_seeds_modulo_two_to_the_64(seed):
    assert int(as_seed(seed, CPU)) % 2**64 == seed % 2**64
    tensor = torch.tensor((seed + 2**63) % 2**64 - 2**63)
    assert torch.equal(draw(as_seed(seed, CPU)), draw(as_seed(tensor, CPU)))


def test_one_seed_alone_draws_its_row():
    rows = draw(shape=(3, 70))
    for seed, row in zip(SEEDS, rows, strict=True):
        assert torch.equal(draw(seed, shape=(3, 70)), row)


def test_block_32t_plus_j_gives_elements_128t_plus_32w_plus_j():
    """Box–Muller by hand, from the words of that block."""
    x = draw(torch.tensor(2**40 + 3), step=7, number=2, shape=(300,), stream=9)
    for element in (0, 1, 31, 32, 64, 127, 128, 200, 299):
        tile, rest = divmod(element, 128)
        place, j = divmod(rest, 32)
        words = [int(w) for w in philox((7, 32 * tile + j, 9, 2), (torch.tensor(3), torch.tensor(2**8)))]
        u, v = words[:2] if place < 2 else words[2:]
        radius, angle = math.sqrt(-2 * math.log((u + 0.5) / 2**32)), 2 * math.pi * v / 2**32
        expected = radius * (math.cos(angle) if place % 2 == 0 else math.sin(angle))
        assert float(x[element]) == pytest.approx(expected, abs=2e-6)


def test_a_longer_tensor_begins_like_a_shorter_one():
    assert torch.equal(draw(shape=(1000,))[:, :333], draw(shape=(333,)))


def test_a_tensors_draw_does_not_depend_on_its_neighbours():
    shapes, streams = [torch.Size(s) for s in ((3,), (130, 2), (), (0,), (128,), (5, 5))], [4, 0, 7, 2, 11, 1]
    together = Layout(shapes, streams, CPU).draw(SEEDS, torch.tensor(7), 1)
    for shape, stream, x in zip(shapes, streams, together, strict=True):
        assert x.shape == (4, *shape)
        assert torch.equal(x, draw(number=1, shape=shape, stream=stream))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)], ids=str)
def test_one_model_draws_tensors_of_any_shape(shape):
    assert draw(torch.tensor(3), shape=shape).shape == shape
    p = torch.nn.Parameter(torch.zeros(shape))
    opt = Langevin([p], 0.1, scheme="L", temperature=1.0, seed=0)
    p.grad = torch.zeros_like(p)
    opt.step()
    assert p.all()


def test_memory_formats_draw_the_same():
    kernels = []
    for memory in (torch.contiguous_format, torch.channels_last):
        p = torch.nn.Parameter(torch.zeros(4, 3, 5, 5).to(memory_format=memory))
        opt = Langevin([p], 0.1, scheme="L", temperature=1.0, seed=0)
        p.grad = torch.zeros_like(p)
        opt.step()
        kernels.append(p.detach())
    assert torch.equal(*kernels)
    assert kernels[0].std() > 0.3


def test_compiled_normals_are_the_eager_ones_to_rounding():
    layout = Layout([torch.Size((3, 7)), torch.Size((200,))], [0, 3], CPU)
    for step, number in ((7, 2), (8, -1)):
        plain = layout.draw(SEEDS, torch.tensor(step), number, normals)
        fast = layout.draw(SEEDS, torch.tensor(step), number, compiled_normals)
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-6)


def test_uniforms_are_uniform_and_never_the_ends():
    u = uniforms(100_001, torch.tensor([1, 2]), torch.tensor(0), 9)
    assert u.shape == (2, 100_001)
    assert u.min() > 0
    assert u.max() < 1
    counts = torch.histc(u.flatten(), 20, 0, 1)
    expected = u.numel() / 20
    assert ((counts - expected) ** 2 / expected).sum() < 19 + 5 * math.sqrt(2 * 19)


def test_uniforms_of_several_steps_at_once_are_those_of_each():
    together = uniforms(13, SEEDS, torch.tensor([4, 5])[:, None, None], 9)
    for step, u in zip((4, 5), together, strict=True):
        assert torch.equal(u, uniforms(13, SEEDS, torch.tensor(step), 9))
