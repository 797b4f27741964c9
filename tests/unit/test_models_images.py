"""Networks for images have the shapes and parameter counts of their formulas, and stack where their norms allow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from holonom import Ensemble
from holonom.landscape import blocks_of
from holonom.models import (
    Discriminator,
    Generator,
    ResNet,
    VisionTransformer,
    cnn,
    latent_line,
    resnet18,
    resnet34,
    resnet50,
    vgg11,
)
from holonom.models.resnet import ResidualBlock
from holonom.models.vit import SelfAttention

NARROW = (2, 3, 4, 4, 5, 5, 6, 6, 7, 8)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def pictures(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def small_vit() -> VisionTransformer:
    return VisionTransformer(image=8, patch=4, width=8, blocks=2, heads=2, hidden=6)


# ── shapes and counts ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize("widths", [NARROW, (64, 128, 256, 256, 512, 512, 512, 512, 512, 512)])
def test_vgg11(widths: tuple[int, ...], batch_norm: bool) -> None:
    model = vgg11(classes=7, batch_norm=batch_norm, widths=widths).eval()
    convolutions = sum((9 * a + 1) * b + 2 * b * batch_norm for a, b in pairwise((3, *widths[:8])))
    linear = sum((a + 1) * b for a, b in pairwise((*widths[7:], 7)))
    assert count(model) == convolutions + linear
    assert model(pictures(2, 3, 32, 32)).shape == (2, 7)
    assert len(blocks_of(model)) == 11, "a norm belongs to the layer before it"


# Those of the published networks for 1000 classes and 7×7 stems, with a stem of 3×3 and ten classes instead.
PUBLISHED = {
    resnet18: 11_689_512 - 512_000 - 1000 + 5130 - 7680,
    resnet34: 21_797_672 - 512_000 - 1000 + 5130 - 7680,
    resnet50: 25_557_032 - 2_048_000 - 1000 + 20_490 - 7680,
}


@pytest.mark.parametrize("make", PUBLISHED)
def test_resnets_have_the_published_number_of_parameters(make: Callable[..., ResNet]) -> None:
    with torch.device("meta"):
        assert count(make()) == PUBLISHED[make]
        assert count(make(pool=True)) == PUBLISHED[make]


def test_resnet50_has_23520842_parameters() -> None:
    with torch.device("meta"):
        assert count(resnet50()) == 23_520_842


@pytest.mark.parametrize("make", PUBLISHED)
def test_resnets_of_any_width_halve_the_resolution_three_times(make: Callable[..., ResNet]) -> None:
    for pool, sides in ((False, [32, 16, 8, 4]), (True, [16, 8, 4, 2])):
        model = make(classes=7, width=2, pool=pool).eval()
        x = model.stem(pictures(2, 3, 32, 32))
        seen = []
        for stage in model.stages:
            x = stage(x)
            seen.append(tuple(x.shape[1:]))
        grow = 8 if make is resnet50 else 2
        assert seen == [(grow * 2**i, side, side) for i, side in enumerate(sides)]
        assert model(pictures(2, 3, 32, 32)).shape == (2, 7)
        assert list(blocks_of(model, ["stem", "stages.3", "head"])) == ["stem", "stages.3", "head"]


def test_a_bottleneck_works_in_its_neck() -> None:
    block = ResidualBlock(8, 16, stride=2, neck=4)
    shapes = [tuple(m.weight.shape) for m in block.branch if isinstance(m, nn.Conv2d)]
    assert shapes == [(4, 8, 1, 1), (4, 4, 3, 3), (16, 4, 1, 1)]
    assert [m.stride[0] for m in block.branch if isinstance(m, nn.Conv2d)] == [1, 2, 1]
    with torch.no_grad():
        block.branch[-1].weight.zero_()
    x = pictures(2, 8, 6, 6)
    block.eval()
    torch.testing.assert_close(block(x), block.shortcut(x).relu(), msg="a silent branch leaves the shortcut")


def test_vgg_keeps_the_signal_without_norms() -> None:
    """He's initial weights: the mean square of what the last convolution gives is that of what it is given."""
    model = vgg11(batch_norm=False, widths=(32,) * 10).requires_grad_(False)
    x = model[0](pictures(16, 3, 32, 32))
    assert 0.2 < float(x.square().mean()) < 20
    assert all(float(m.bias.abs().max()) == 0 for m in model.modules() if isinstance(m, nn.Conv2d))


def test_cnn() -> None:
    model = cnn(classes=7, widths=(2, 3, 4, 5), hidden=(6, 8)).eval()
    convolutions = sum((9 * a + 1) * b + 2 * b for a, b in pairwise((1, 2, 3, 4, 5)))
    assert count(model) == convolutions + sum((a + 1) * b for a, b in pairwise((5 * 49, 6, 8, 7)))
    assert model(pictures(3, 1, 28, 28)).shape == (3, 7)
    assert [type(m) for m in model.modules()].count(nn.Dropout) == 1
    assert len(blocks_of(model)) == 7


def test_vision_transformer() -> None:
    d, hidden, blocks, patches = 64, 128, 6, 16
    model = VisionTransformer(classes=7)
    each = 4 * d + 4 * d * (d + 1) + (d + 1) * hidden + (hidden + 1) * d
    embedding = 7 * 7 * d + d + d + (patches + 1) * d
    assert count(model) == embedding + blocks * each + 2 * d + 7 * (d + 1)
    assert model(pictures(3, 1, 28, 28)).shape == (3, 7)


def test_dcgan() -> None:
    w = 4
    generator, discriminator = Generator(width=w), Discriminator(width=w)
    inner = 8 * 4 * w * w * 16 + 4 * 2 * w * w * 9 + 2 * w * w * 16
    assert count(generator) == 100 * 8 * w * 4 + inner + w * 16 + 2 * (8 + 4 + 2 + 1) * w
    assert count(discriminator) == w * 16 + inner + 8 * w * 4 + 2 * (2 + 4 + 8) * w
    shallow = count(Generator(width=w, depth=3)), count(Discriminator(w, depth=3))
    assert shallow[0] == 100 * 2 * w * 49 + 2 * 2 * w + 2 * w * w * 16 + 2 * w + w * 16
    assert shallow[1] == 16 * w + 2 * w * w * 16 + 2 * 2 * w + 2 * w * 49
    assert Discriminator(w, depth=3)(Generator(width=w, depth=3)(pictures(5, 100))).shape == (5,)
    made = generator(pictures(5, 100))
    assert made.shape == (5, 1, 28, 28)
    assert made.abs().max() <= 1
    assert discriminator(made).shape == (5,)


def test_dcgan_starts_as_published() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator = Generator()
    start = generator.state_dict()
    assert abs(float(start["layers.0.weight"].std()) - 0.02) < 1e-4
    assert abs(float(start["layers.1.weight"].mean()) - 1) < 0.01


# ── what they compute ────────────────────────────────────────────────────────────────────────────


def test_attention_is_its_formula() -> None:
    layer = SelfAttention(6, 2).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, bias = (p.detach().numpy() for p in layer.inputs.parameters())
    expected = np.zeros((2, 4, 6))
    for n in range(2):
        q, k, v = np.split(x[n].numpy() @ weight.T + bias, 3, axis=1)
        for head in (slice(0, 3), slice(3, 6)):
            scores = np.exp(q[:, head] @ k[:, head].T / np.sqrt(3))
            expected[n, :, head] = scores / scores.sum(1, keepdims=True) @ v[:, head]
    out_weight, out_bias = (p.detach().numpy() for p in layer.output.parameters())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected @ out_weight.T + out_bias, rtol=1e-12)


def test_the_transformer_sees_order_only_through_positions() -> None:
    model = small_vit()
    x = pictures(3, 1, 8, 8)
    turned = x.flip(2)
    swapped = torch.cat([x[:, :, 4:], x[:, :, :4]], 2)
    assert not torch.allclose(model(x), model(swapped))
    with torch.no_grad():
        model.positions.zero_()
    assert torch.allclose(model(x), model(swapped), atol=1e-6), "patches are a set"
    assert not torch.allclose(model(x), model(turned)), "the inside of a patch is not"


def test_latent_line() -> None:
    first, second = pictures(2, 100).unbind()
    line = latent_line(first, second)
    assert line.shape == (11, 100)
    assert torch.equal(line[0], first)
    assert torch.equal(line[-1], second)
    torch.testing.assert_close(line[3], 0.7 * first + 0.3 * second)
    with pytest.raises(ValueError, match="two ends of one shape"):
        latent_line(first, second[:50])


def test_a_few_steps_train_the_discriminator() -> None:
    """The discriminator learns to separate white images from generated ones."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        generator, discriminator = Generator(width=4), Discriminator(width=4)
    real, z = torch.ones(8, 1, 28, 28), pictures(8, 100)
    optimizer = torch.optim.Adam(discriminator.parameters(), 1e-2)
    losses = []
    for _ in range(10):
        logits = discriminator(torch.cat([real, generator(z).detach()]))
        loss = binary_cross_entropy_with_logits(logits, torch.arange(2.0).flip(0).repeat_interleave(8))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    generator.zero_grad()
    discriminator(generator(z)).sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in generator.parameters())


# ── stacked ──────────────────────────────────────────────────────────────────────────────────────

STACKED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "vgg11": (lambda: vgg11(widths=NARROW, batch_norm=False), (3, 32, 32), True),
    "vgg11 with norm": (lambda: vgg11(widths=NARROW), (3, 32, 32), False),
    "cnn": (lambda: cnn(widths=(2, 2, 3, 3), hidden=(4, 5)), (1, 28, 28), False),
    "vit": (small_vit, (1, 8, 8), True),
}


@pytest.mark.parametrize("name", STACKED)
def test_an_ensemble_is_its_members(name: str) -> None:
    make, shape, trains = STACKED[name]
    ensemble = Ensemble(make, 2, seed=3).eval()
    x, y = pictures(4, *shape), torch.tensor([0, 1, 2, 3])
    outputs = ensemble(x)
    members = ensemble.unstack()
    for output, member in zip(outputs, members, strict=True):
        torch.testing.assert_close(output, member(x), rtol=1e-4, atol=1e-5)
    if not trains:
        return
    gradients, losses = ensemble.train().gradients(cross_entropy, x, y)
    for i, member in enumerate(members):
        loss = cross_entropy(member.train()(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(losses[i], loss.detach(), rtol=1e-4, atol=1e-5)
        for parameter, p in member.named_parameters():
            torch.testing.assert_close(gradients[parameter][i], p.grad, rtol=1e-3, atol=1e-5)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vgg11(widths=(64, 128)), "first 10 layers"),
        (lambda: cnn(widths=(2, 3)), "four widths"),
        (lambda: VisionTransformer(patch=5), "multiple of patch"),
        (lambda: VisionTransformer(width=60), "multiple of patch"),
        (lambda: Generator(depth=4), "depth must be one of 3, 5"),
    ],
)
def test_sizes_are_checked(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
