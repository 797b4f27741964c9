"""Networks have the shapes and parameter counts of their formulas, and stack under vmap."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from holonom import partition
from holonom.models import TransformerLM, mlp, shlp
from holonom.models.transformer import EncoderLayer, positions


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def small(**options: float) -> TransformerLM:
    return TransformerLM(**{"vocabulary": 30, "embedding": 8, "feedforward": 12, **options})  # type: ignore[arg-type]


def seeded(make: object, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()  # type: ignore[operator]


@pytest.mark.parametrize("sizes", [[2, 1], [2, 500, 1], [6, 500, 200, 18], [784, 1000, 10]])
@pytest.mark.parametrize("bias", [True, False])
def test_perceptrons(sizes: list[int], bias: bool) -> None:
    model = mlp(sizes, bias=bias)
    assert count(model) == sum((a + bias) * b for a, b in pairwise(sizes))
    assert [type(layer) for layer in model] == ([nn.Linear, nn.ReLU] * len(sizes))[: 2 * len(sizes) - 3]
    assert model(torch.zeros(4, sizes[0])).shape == (4, sizes[-1])


def test_a_perceptron_is_its_formula() -> None:
    model = shlp(3, 5, 2, activation=nn.Tanh).double()
    x = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, last = model[0], model[2]
    hidden = np.tanh(x.numpy() @ first.weight.detach().numpy().T + first.bias.detach().numpy())
    expected = hidden @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("sizes", [[], [3], [3, 0, 1]])
def test_widths_are_checked(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes must name"):
        mlp(sizes)


@pytest.mark.parametrize(("v", "d", "f", "layers"), [(30, 8, 12, 1), (100, 20, 20, 3)])
def test_transformer_parameters(v: int, d: int, f: int, layers: int) -> None:
    attention, feedforward, norms = 4 * d * (d + 1), d * f + f + f * d + d, 4 * d
    model = TransformerLM(v, d, 2, f, layers)
    assert count(model) == v * d + layers * (attention + feedforward + norms) + d * v + v
    assert model(torch.zeros(5, 3, dtype=torch.int64)).shape == (5, 3, v)


def test_the_paper_has_four_and_a_half_million_weights_on_penn_treebank() -> None:
    with torch.device("meta"):
        model = TransformerLM(10_000)
    assert count(model) == 2 * 10_000 * 200 + 10_000 + 2 * (4 * 200 * 201 + 2 * 200 * 200 + 400 + 4 * 200) == 4_494_000


def test_widths_and_heads_must_fit() -> None:
    for width, heads in ((7, 1), (8, 3)):
        with pytest.raises(ValueError, match="even and a multiple of heads"):
            TransformerLM(10, width, heads)


def test_an_encoder_layer_is_torchs() -> None:
    ours = EncoderLayer(8, 2, 12, 0.0).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 12, 0.0).double()
    names = {
        "self_attn.in_proj_": "attention.inputs.",
        "self_attn.out_proj.": "attention.output.",
        "linear1.": "feedforward.0.",
        "linear2.": "feedforward.3.",
        "norm1.": "norm1.",
        "norm2.": "norm2.",
    }
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(p.shape, dtype=p.dtype, generator=generator) for name, p in ours.named_parameters()}
    ours.load_state_dict(state)
    theirs.load_state_dict({a + k: state[b + k] for a, b in names.items() for k in ("weight", "bias")})
    x = torch.randn(6, 3, 8, dtype=torch.float64, generator=generator)
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x, mask, is_causal=True), rtol=1e-12, atol=1e-12)


def test_the_whole_model_is_its_formula() -> None:
    """A float64 NumPy transcription of embedding, positions, two layers of causal attention and decoder."""
    model = seeded(small, 0).double().eval()
    tokens = torch.randint(30, (6, 3), generator=torch.Generator().manual_seed(1))
    w = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attend(x: np.ndarray, name: str) -> np.ndarray:
        query, key, value = np.split(linear(x, f"{name}.inputs"), 3, axis=1)
        mixed = np.zeros_like(x)
        for t in range(len(x)):
            for head in (slice(0, 4), slice(4, 8)):
                weight = np.exp(key[: t + 1, head] @ query[t, head] / 2)  # √(8/2) = 2
                mixed[t, head] = weight / weight.sum() @ value[: t + 1, head]
        return linear(mixed, f"{name}.output")

    for column in range(3):
        x = math.sqrt(8) * w["embedding.weight"][tokens[:, column].numpy()]
        for t in range(6):
            for i in range(4):
                x[t, 2 * i : 2 * i + 2] += [math.sin(t / 10**i), math.cos(t / 10**i)]  # 10000^{2i/8} = 10^i
        for layer in ("layers.0", "layers.1"):
            x = norm(x + attend(x, f"{layer}.attention"), f"{layer}.norm1")
            hidden = np.maximum(linear(x, f"{layer}.feedforward.0"), 0)
            x = norm(x + linear(hidden, f"{layer}.feedforward.3"), f"{layer}.norm2")
        got = model(tokens)[:, column].detach().numpy()
        np.testing.assert_allclose(got, linear(x, "decoder"), rtol=1e-10, atol=1e-12)


def test_positions_are_sines_and_cosines() -> None:
    got = positions(40, 6, torch.zeros(1, dtype=torch.float64)).numpy()
    for t in (0, 1, 39):
        for i in range(3):
            angle = t / 10_000 ** (2 * i / 6)
            assert got[t, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert got[t, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)
    assert positions(5, 4, torch.zeros(1, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_word_sees_no_later_one_and_does_see_earlier_ones() -> None:
    model = seeded(small, 0).eval()
    tokens = torch.arange(10)[:, None]
    changed = tokens.clone()
    changed[6] = 20
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:6], after[:6], rtol=0, atol=1e-6)
    assert ((before - after)[6:].abs().amax((1, 2)) > 1e-4).all()


def test_word_order_matters_and_columns_do_not_mix() -> None:
    model = seeded(small, 0).eval()
    tokens = torch.tensor([[1, 2], [3, 2], [5, 6]])
    out = model(tokens)
    torch.testing.assert_close(out[:, :1], model(tokens[:, :1]))
    # The same words in another order: the last prediction differs, so positions are seen.
    assert not torch.allclose(model(tokens[[1, 0, 2]])[2], out[2])


def test_roles_cover_every_parameter_once() -> None:
    model = small()
    groups = partition(model, {pattern: {} for pattern in TransformerLM.roles.values()}, verbose=False)
    sizes = dict(zip(TransformerLM.roles, (sum(p.numel() for _, p in g["params"]) for g in groups), strict=True))
    assert sizes == {"linear": 2 * 212, "norm": 2 * 32, "attention": 2 * 288, "embedding": 240, "decoder": 270}
    assert sum(sizes.values()) == count(model)


@pytest.mark.filterwarnings("error")  # vmap warns when it falls back to a loop
@pytest.mark.parametrize("shared", [True, False])
def test_stacked_gradients_equal_those_of_each_model(shared: bool) -> None:
    models = [seeded(small, seed).double().eval() for seed in range(3)]
    generator = torch.Generator().manual_seed(0)
    shape = (7, 4) if shared else (3, 7, 4)
    tokens, targets = (torch.randint(30, shape, generator=generator) for _ in range(2))
    skeleton = small().to("meta").eval()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(skeleton, parameters, (x,))
        return cross_entropy(logits.flatten(0, 1), y.flatten())

    stacked, _ = stack_module_state(models)
    where = None if shared else 0
    gradients = vmap(grad(loss), in_dims=(0, where, where))(stacked, tokens, targets)
    for i, model in enumerate(models):
        x, y = (tokens, targets) if shared else (tokens[i], targets[i])
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name][i], parameter.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.filterwarnings("error")
def test_dropout_differs_between_stacked_models() -> None:
    model = seeded(small, 0).train()
    stacked, _ = stack_module_state([model] * 3)
    tokens = torch.arange(12).view(6, 2)

    def run(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(model, parameters, (tokens,))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = vmap(run, randomness="different")(stacked)
    assert out.shape == (3, 6, 2, 30)
    assert not torch.allclose(out[0], out[1])
    assert not torch.allclose(out[1], out[2])
    model.eval()
    quiet = vmap(run, randomness="different")(stacked)
    torch.testing.assert_close(quiet[0], quiet[1])
    assert not torch.allclose(quiet[0], out[0])
