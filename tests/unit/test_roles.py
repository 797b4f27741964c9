"""What a parameter is in its network: by its module's type, then by what is around it, then by what the user says."""

import warnings
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from holonom import Ensemble, Langevin, init_, partition, presets
from holonom.constraints import Circle, Orthogonal, Sphere, View
from holonom.errors import ConstraintError, PartitionError
from holonom.models import Generator, TransformerLM, VisionTransformer, cnn, mlp, resnet34, tiny_resnet, vgg11
from holonom.partitions import ROLES, embeddings, hidden, locate, named, output, role, weights

pytestmark = pytest.mark.filterwarnings("ignore:weights that did not satisfy")


def roles(model: nn.Module, **options) -> dict[str, str]:
    return {place.name: place.role for place in locate(model, **options)}


def views(model: nn.Module, **options) -> dict[str, View]:
    return {place.name: place.view for place in locate(model, **options)}


def constrained(optimizer: Langevin) -> set[str]:
    return {name for g in optimizer.param_groups if g["constraint"] != "Free()" for name in g["param_names"]}


def is_orthogonal(matrix: Tensor) -> bool:
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return bool((tall.T @ tall - torch.eye(tall.shape[1])).abs().max() < 1e-5)


def train(model: nn.Module, optimizer: Langevin, loss: Tensor, steps: int = 3) -> None:
    loss.backward()
    for _ in range(steps):
        optimizer.step()


class TiedGPT(nn.Module):
    """Made of torch's modules, with the embedding's tensor as the head's."""

    def __init__(self, width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(11, width)
        self.pos_emb = nn.Parameter(torch.randn(1, 5, width))
        layer = nn.TransformerEncoderLayer(width, 2, 12)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.pos_emb
        return self.head(self.norm(self.blocks(x)))


def test_tied_gpt() -> None:
    found = roles(TiedGPT())
    assert found["token_embedding.weight"] == "tied head"
    assert found["pos_emb"] == "position"
    assert found["norm.weight"] == "norm"
    layer = "blocks.layers.1"
    assert {name.removeprefix(f"{layer}."): what for name, what in found.items() if name.startswith(layer)} == {
        "self_attn.in_proj_weight": "attention", "self_attn.in_proj_bias": "bias",
        "self_attn.out_proj.weight": "attention", "self_attn.out_proj.bias": "bias",
        "linear1.weight": "feed-forward", "linear1.bias": "bias",
        "linear2.weight": "feed-forward", "linear2.bias": "bias",
        "norm1.weight": "norm", "norm1.bias": "norm", "norm2.weight": "norm", "norm2.bias": "norm",
    }  # fmt: skip


@pytest.mark.parametrize("preset", [presets.o_cola_od, presets.o_cola_ud])
def test_o_cola_constrains_all_of_a_transformers_matrices_block_by_block(preset) -> None:
    torch.manual_seed(0)
    model = TiedGPT()
    optimizer = preset(model, lr=0.02)
    matrices = ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")
    assert constrained(optimizer) == {f"blocks.layers.{i}.{name}" for i in (0, 1) for name in matrices}
    train(model, optimizer, model(torch.arange(5)[None]).square().mean())
    for layer in model.blocks.layers:
        for block in layer.self_attn.in_proj_weight.detach().chunk(3):
            assert is_orthogonal(block)
        assert is_orthogonal(layer.linear2.weight.detach())
    assert max(optimizer.residuals()) < 1e-5


def test_c_and_s_cola_skip_embeddings_and_positions_unless_named() -> None:
    model = TiedGPT()
    inside = {place.name for place in locate(model) if weights(place) and hidden(place)}
    assert constrained(presets.c_cola_od(model)) == inside
    assert constrained(presets.s_cola_ud(model)) == inside
    assert constrained(presets.c_cola_ud(model, layers=weights)) == inside | {"token_embedding.weight", "pos_emb"}
    assert constrained(presets.c_cola_od(model, layers=embeddings)) == {"token_embedding.weight"}
    with pytest.raises(PartitionError, match="2 radii for 8 layers with constrained weights"):
        presets.c_cola_od(model, radius=(1.0, 2.0))


PLAIN = {
    "mlp": lambda: mlp([2, 6, 6, 6, 1]), "cnn": lambda: cnn(widths=(2, 3, 3, 4), hidden=(8, 6)),
    "resnet34": lambda: resnet34(width=2), "vgg11": lambda: vgg11(widths=(4,) * 10),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("replicas", [None, 2])
def test_o_cola_leaves_first_and_last_layer_of_the_papers_networks_free(name: str, replicas: int | None) -> None:
    model = PLAIN[name]() if replicas is None else Ensemble(PLAIN[name], replicas, seed=0)
    matrices = [place.name for place in locate(model) if place.ndim >= 2]
    assert constrained(presets.o_cola_od(model)) == set(matrices[1:-1])
    assert constrained(presets.o_cola_od(model, layers="all")) == set(matrices)
    assert constrained(presets.c_cola_od(model)) == set(matrices)


def test_resnet() -> None:
    found = roles(tiny_resnet())
    assert found["stem.0.weight"] == "convolution"
    assert found["stages.1.0.shortcut.0.weight"] == "convolution"
    assert found["stem.1.weight"] == "norm"
    assert found["head.weight"] == "head"
    assert found["head.bias"] == "bias"


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options) -> None:
        super().__init__()
        self.memory = kind(3, 5, **options)
        self.fc = nn.Linear(5, 2)


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1), (nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_recurrent_gates_are_blocks(kind: type[nn.Module], gates: int) -> None:
    torch.manual_seed(0)
    model = Recurrent(kind)
    optimizer = presets.o_cola_od(model)
    names = [name for name in roles(model) if name.startswith("memory.weight")]
    assert constrained(optimizer) == set(names)
    assert {roles(model)[name] for name in names} == {"recurrent"}
    assert {views(model)[name] for name in names} == {View(blocks=gates)}
    for name in names:
        assert all(is_orthogonal(block) for block in model.get_parameter(name).detach().chunk(gates))


def test_the_projection_of_an_lstm_is_one_block() -> None:
    found = views(Recurrent(nn.LSTM, proj_size=2, num_layers=2))
    assert found["memory.weight_hr_l1"] == View()
    assert found["memory.weight_hh_l1"] == View(blocks=4)


def test_multihead_attention_by_itself_and_with_other_widths() -> None:
    model = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, add_bias_kv=True)
    assert {name: what for name, what in roles(model).items() if what == "attention"}.keys() == {
        "q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight",
    }  # fmt: skip
    assert set(views(model).values()) == {View(), View(batch=1)}  # one matrix each; bias_k and bias_v are (1, 1, 8)
    assert roles(model)["bias_k"] == "bias"
    assert views(nn.MultiheadAttention(8, 2))["in_proj_weight"] == View(blocks=3)


def test_transposed_convolutions_read_output_channels_as_outputs() -> None:
    torch.manual_seed(0)
    model = Generator(latent=6, width=4, depth=3)
    assert set(roles(model).values()) == {"transposed convolution", "norm", "head"}
    optimizer = presets.o_cola_od(model)
    assert constrained(optimizer) == {"layers.3.weight"}
    kernel = model.layers[3].weight.detach()  # (in, out, 4, 4)
    assert is_orthogonal(kernel.movedim(1, 0).flatten(1))
    assert not is_orthogonal(kernel.flatten(1))
    sphere = presets.s_cola_od(model, radius=0.1, slack=False)
    torch.testing.assert_close(kernel.square().sum((0, 2, 3)).sqrt(), torch.full((4,), 0.1))
    assert max(sphere.residuals()) < 1e-5


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 12, 3, groups=2), nn.Conv1d(12, 6, 1),
        nn.ConvTranspose2d(6, 4, 2, groups=2), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def test_depthwise_and_grouped_convolutions() -> None:
    model = convolutional()
    found = roles(model)
    assert [found[f"{i}.weight"] for i in (0, 1, 2, 3, 4, 6)] == [
        "convolution", "depthwise convolution", "convolution", "convolution", "transposed convolution", "head",
    ]  # fmt: skip
    with pytest.raises(PartitionError, match=r"'4.weight' .* transposed convolution with 2 groups.*'other'"):
        presets.o_cola_od(model)
    optimizer = presets.o_cola_od(model, roles={"4.weight": "other"})
    assert constrained(optimizer) == {"2.weight", "3.weight"}
    for group in model[2].weight.detach().chunk(2):
        assert is_orthogonal(group.flatten(1))


class Conv1D(nn.Module):
    """As in transformers: y = x W + b with W of shape (in, out)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 10)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class SmallGPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        attention = nn.ModuleDict({"c_attn": Conv1D(18, 6), "c_proj": Conv1D(6, 6)})
        cross = nn.ModuleDict({"c_attn": Conv1D(12, 6), "q_attn": Conv1D(6, 6), "c_proj": Conv1D(6, 6)})
        maps = nn.ModuleDict({"c_fc": Conv1D(24, 6), "c_proj": Conv1D(6, 24)})
        self.wte, self.wpe = nn.Embedding(9, 6), nn.Embedding(4, 6)
        self.h = nn.ModuleList([nn.ModuleDict({"attn": attention, "crossattention": cross, "mlp": maps})])
        self.lm_head = nn.Linear(6, 9)


def test_linear_maps_stored_as_in_out() -> None:
    torch.manual_seed(0)
    model = SmallGPT2()
    found = roles(model)
    assert (found["wte.weight"], found["wpe.weight"], found["lm_head.weight"]) == ("embedding", "position", "head")
    blocks = {name.removeprefix("h.0."): place.view.blocks for place in locate(model) if (name := place.name) and
              place.ndim == 2 and name.startswith("h.0.")}  # fmt: skip
    assert blocks == {
        "attn.c_attn.weight": 3, "attn.c_proj.weight": 1, "crossattention.c_attn.weight": 2,
        "crossattention.q_attn.weight": 1, "crossattention.c_proj.weight": 1, "mlp.c_fc.weight": 1,
        "mlp.c_proj.weight": 1,
    }  # fmt: skip
    assert {views(model)[f"h.0.{name}"].output for name in blocks} == {1}
    optimizer = presets.o_cola_ud(model)
    assert constrained(optimizer) == {f"h.0.{name}" for name in blocks}
    packed = model.h[0]["attn"]["c_attn"].weight.detach()
    assert all(is_orthogonal(block) for block in packed.chunk(3, dim=1))
    spheres = presets.s_cola_od(model, radius=0.5, slack=False)
    columns = model.h[0]["mlp"]["c_fc"].weight.detach().norm(dim=0)
    torch.testing.assert_close(columns, torch.full((24,), 0.5))
    assert max(spheres.residuals()) < 1e-5


def test_our_own_transformers() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(width=16, blocks=2, hidden=12)
    found = roles(model)
    assert (found["token"], found["positions"], found["patches.weight"]) == ("position", "position", "convolution")
    maps = {
        f"blocks.{i}.{m}.weight" for i in (0, 1) for m in ("attention.inputs", "attention.output", "mlp.0", "mlp.2")
    }
    assert constrained(presets.o_cola_od(model)) == maps
    assert all(is_orthogonal(block) for block in model.blocks[0].attention.inputs.weight.detach().chunk(3))
    language = TransformerLM(10, 8, feedforward=6)
    assert roles(language)["decoder.weight"] == "head"
    assert views(language)["layers.1.attention.inputs.weight"] == View(blocks=3)


def test_queries_keys_and_values_are_attention_only_together() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(4, 2, bias=False) for _ in range(3))

    found = roles(nn.Sequential(nn.Linear(4, 4), Head(), nn.ModuleDict({"value": nn.Linear(4, 4)}), nn.Linear(4, 1)))
    assert {name: what for name, what in found.items() if what == "attention"}.keys() == {
        "1.query.weight", "1.key.weight", "1.value.weight",
    }  # fmt: skip
    assert found["2.value.weight"] == "feed-forward"


def test_packed_linear_maps_by_their_common_names() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.to_kv, self.proj = nn.Linear(4, 12), nn.Linear(4, 8), nn.Linear(4, 4)

    model = nn.Sequential(nn.Linear(4, 4), Attention(), nn.Linear(4, 4))
    found = views(model)
    assert [found[f"1.{name}.weight"].blocks for name in ("qkv", "to_kv", "proj")] == [3, 2, 1]


def test_norms_scales_and_tokens() -> None:
    class ScaleNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g = nn.Parameter(torch.ones(4, 4))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer_scale = nn.Parameter(torch.ones(4, 1, 1))
            self.norm = ScaleNorm()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
            self.prelu = nn.PReLU(4)

    model = nn.Sequential(Block(), nn.LayerNorm((2, 3)), nn.RMSNorm(4), nn.GroupNorm(1, 4), nn.BatchNorm1d(4))
    assert roles(model) == {
        "0.layer_scale": "bias", "0.norm.g": "norm", "0.cls_token": "position",
        "0.relative_position_bias_table": "position", "0.prelu.weight": "bias",
        "1.weight": "norm", "1.bias": "norm", "2.weight": "norm", "3.weight": "norm", "3.bias": "norm",
        "4.weight": "norm", "4.bias": "norm",
    }  # fmt: skip
    assert not any(weights(place) for place in locate(model) if place.role != "position")


def test_stacks_of_biases_are_no_matrices() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.ones(3, 4, 8))
            self.gate_up_proj_bias = nn.Parameter(torch.zeros(3, 8))
            self.bias = nn.Parameter(torch.zeros(3, 4))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Experts()
            self.head = nn.Linear(8, 2, bias=False)

    model = Block()
    assert roles(model) == {
        "mlp.gate_up_proj": "feed-forward", "mlp.gate_up_proj_bias": "bias", "mlp.bias": "bias", "head.weight": "head"
    }  # fmt: skip
    assert [place.name for place in locate(model) if weights(place)] == ["mlp.gate_up_proj", "head.weight"]


def test_heads_are_named_or_last_and_not_one_of_many() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(3, 4)
            self.head = nn.Linear(4, 2)
            self.blocks = nn.ModuleList([Residual(), Residual()])
            self.value = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    found = roles(Two())
    assert [name for name, what in found.items() if what == "head"] == ["head.weight", "value.1.weight"]
    assert found["blocks.1.fc.weight"] == "feed-forward"
    assert [place.name for place in locate(Two()) if output(place)] == [
        "head.weight", "head.bias", "value.1.weight", "value.1.bias",
    ]  # fmt: skip


def test_a_model_may_have_several_heads() -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head_a": nn.Linear(4, 3), "mu_head": nn.Linear(4, 1)})
    model["heads"] = nn.ModuleDict({"policy": nn.Linear(4, 2), "value": nn.Linear(4, 1)})
    model["ahead"] = nn.Linear(4, 4)
    model["blocks"] = nn.ModuleList([nn.ModuleDict({"head_mix": nn.Linear(4, 4)})])
    model["last"] = nn.Linear(4, 1)
    heads = [name.removesuffix(".weight") for name, what in roles(model).items() if what == "head"]
    assert heads == ["head_a", "mu_head", "heads.policy", "heads.value", "last"]


def test_embedded_patches_are_embeddings() -> None:
    model = nn.Sequential()
    model.add_module("text", nn.Linear(4, 4))
    model.add_module("patch_embed", nn.Sequential(nn.Conv2d(3, 4, 2, 2)))
    model.add_module("to_patch_embedding", nn.Linear(4, 4))
    model.add_module("embedding_net", nn.Linear(4, 4))
    model.add_module("body", nn.Linear(4, 4))
    assert list(roles(model).values())[::2] == ["feed-forward", "embedding", "embedding", "feed-forward", "head"]


def test_what_the_user_says_overrides() -> None:
    model = mlp([2, 4, 4, 6, 1])
    found = roles(model, roles={"2.weight": "attention", "4.*": "other"})
    assert [found[f"{i}.weight"] for i in (0, 2, 4, 6)] == ["feed-forward", "attention", "other", "head"]
    assert views(model, blocks={"4.weight": 3})["4.weight"] == View(blocks=3)
    assert constrained(presets.o_cola_od(model, roles={"6.weight": "feed-forward"}, blocks={"4.weight": 2})) == {
        "2.weight", "4.weight", "6.weight",
    }  # fmt: skip
    assert all(is_orthogonal(block) for block in model[4].weight.detach().chunk(2))
    assert constrained(presets.o_cola_od(model, layers=role("feed-forward"))) == {"0.weight", "2.weight", "4.weight"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": {"2.weight": "atention"}}, "there is no role 'atention'; roles are 'embedding'"),
        ({"roles": {"decoder.*": "head"}}, r"roles: no parameter is called 'decoder\.\*'; the names are '0.weight'"),
        ({"blocks": {"3.weight": 2}}, "blocks: no parameter is called '3.weight'"),
        ({"blocks": {"2.weight": 3}}, "the 4 outputs of '2.weight' are not 3 equal blocks"),
        ({"blocks": {"2.weight": 0}}, r"blocks\['2.weight'\] must be a whole number"),
    ],
)
def test_roles_and_blocks_that_fit_nothing_are_refused(options: dict, message: str) -> None:
    model = mlp([2, 4, 4, 1])
    before = model[2].weight.detach().clone()
    for build in (presets.o_cola_od, presets.s_cola_ud, lambda m, **o: partition(m, {"rest": {}}, **o)):
        with pytest.raises(PartitionError, match=message):
            build(model, **options)
    assert torch.equal(model[2].weight, before)


def test_parameters_without_their_model_have_no_roles() -> None:
    matrix, kernel = nn.Parameter(torch.eye(3)), nn.Parameter(torch.randn(2, 3, 3))
    with pytest.raises(PartitionError, match="give the model itself"):
        presets.o_cola_od([matrix], roles={"*": "head"})
    with pytest.raises(PartitionError, match="give the model itself"):
        presets.c_cola_od([matrix], layers=weights)
    assert len(presets.o_cola_od([matrix]).param_groups) == 1
    with pytest.raises(ConstraintError, match="say how to read more than two dimensions"):
        presets.o_cola_od([kernel])


@pytest.mark.parametrize("build", [presets.o_cola_ud, presets.c_cola_od, presets.s_cola_od])
def test_parameters_of_a_whole_model_without_it_are_warned_about(build: Callable[..., Langevin]) -> None:
    model = mlp([2, 3, 3, 1])
    model[2].weight.requires_grad_(False)
    frozen = model[2].weight.clone()
    for given in (model.parameters(), list(model.parameters()), model.named_parameters()):
        with pytest.warns(UserWarning, match=r"all 2 matrices are on .*: without the model.*heads") as caught:
            build(given)
        assert caught[0].filename == __file__
    assert torch.equal(model[2].weight, frozen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "weights that did not satisfy")
        build([model[0].weight])  # chosen one by one
        build([{"params": model.parameters()}])


def test_tensors_of_unknown_layout_are_refused_by_name() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.maps = nn.Parameter(torch.randn(2, 4, 4))
            self.last = nn.Linear(4, 4)

    model = Experts()
    with pytest.raises(PartitionError, match=r"'maps' of shape \(2, 4, 4\) .*Experts does not say.*'other'"):
        presets.s_cola_od(model)
    assert constrained(presets.s_cola_od(model, roles={"maps": "other"})) == {"first.weight", "last.weight"}
    assert "maps" in constrained(presets.c_cola_od(model))  # entry by entry, in any layout
    groups = partition(model, {"maps": {"constraint": Orthogonal(View(batch=1))}, "rest": {}}, verbose=False)
    assert max(Langevin(groups).residuals()) < 1e-5


def test_partition_reads_every_parameter_by_its_module() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3), nn.ConvTranspose2d(6, 6, 2), nn.Flatten(),
                          nn.Linear(6, 6), nn.Linear(6, 2))  # fmt: skip
    rules = {output: {"lr": 0.5}, weights & hidden: {"constraint": Orthogonal(), "lr": 0.2}, "rest": {}}
    groups = partition(model, rules, verbose=False)
    assert [[name for name, _ in group["params"]] for group in groups[:4]] == [
        ["5.weight", "5.bias"], ["1.weight"], ["2.weight"], ["4.weight"],
    ]  # fmt: skip
    assert [group["name"] for group in groups] == [
        "output", "weights & hidden", "weights & hidden (2)", "weights & hidden (3)", "rest",
    ]  # fmt: skip
    optimizer = Langevin(groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.2, 0.2, 0.2, 0.1]
    assert is_orthogonal(model[1].weight.detach().flatten(1))
    assert is_orthogonal(model[2].weight.detach().movedim(1, 0).flatten(1))
    assert "group 1 (weights & hidden): 1 tensors" in repr(optimizer)


def test_an_explicit_view_is_kept() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(6, 4, 2))
    groups = partition(model, {weights: {"constraint": Sphere(view="conv")}, "rest": {}}, verbose=False)
    assert groups[0]["constraint"].block_view == "conv"
    assert Langevin(groups).state[model[0].weight]["slack"].shape == (6, 1)


def test_replicas_have_the_roles_and_views_of_their_model() -> None:
    def make() -> nn.Module:
        attention = VisionTransformer(width=8, blocks=1, hidden=6)
        return nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.ConvTranspose2d(4, 4, 2), attention)

    model, ensemble = make(), Ensemble(make, 3, seed=0)
    assert roles(ensemble) == roles(model)
    for name, view in views(model).items():
        assert views(ensemble)[name] == View(1 + view.batch, view.output, view.blocks)
    assert constrained(presets.o_cola_od(ensemble)) == constrained(presets.o_cola_od(model))
    for replica in ensemble.get_parameter("2.blocks.0.attention.inputs.weight").detach():
        assert all(is_orthogonal(block) for block in replica.chunk(3))
    for replica in ensemble.get_parameter("1.weight").detach():
        assert is_orthogonal(replica.movedim(1, 0).flatten(1))


def test_groups_of_presets_are_called_by_their_roles() -> None:
    optimizer = presets.o_cola_od(TiedGPT())
    printed = repr(optimizer)
    assert "(attention)" in printed
    assert "(attention, feed-forward)" in printed
    assert "(rest)" in printed
    assert [group["name"] for group in presets.c_cola_od(mlp([2, 3, 1]), radius=(1.0, 5.0)).param_groups] == [
        "feed-forward", "rest", "head",
    ]  # fmt: skip


def test_every_role_is_known_to_the_selectors() -> None:
    places = locate(TiedGPT())
    assert sum(role(name)(place) for name in ROLES for place in places) == len(places)
    with pytest.raises(PartitionError, match="there is no role 'heads'"):
        role("heads")


def test_wrappers_change_nothing() -> None:
    class Toy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.attention = nn.MultiheadAttention(4, 2)
            self.map = nn.Linear(4, 4)
            self.last = nn.Linear(4, 5)

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Toy()

    assert roles(Wrapper()) == {f"module.{name}": what for name, what in roles(Toy()).items()}
    assert roles(Toy())["last.weight"] == "head"


def test_warnings_name_the_parameters_and_point_at_the_users_line() -> None:
    model = mlp([2, *[4] * 7, 1])
    with pytest.warns(UserWarning, match=r"Orthogonal: 6 of 6 .*, in '2.weight', '4.weight', '6.weight', '8.weight' "
                      r"and 2 more") as caught:  # fmt: skip
        presets.o_cola_od(model)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="Circle: .* in parameter 0") as caught:
        optimizer = Langevin([nn.Parameter(torch.ones(2))], constraint=Circle(0.5))
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="Circle: .* in parameter 1") as caught:
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert caught[0].filename == __file__


def test_a_layer_of_a_transformer_by_itself_has_no_first_and_last_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 12)
    assert {name for name, what in roles(model).items() if what == "feed-forward"} == {
        "linear1.weight",
        "linear2.weight",
    }
    assert len(constrained(presets.o_cola_od(model))) == 4


def test_layers_that_are_no_choice_are_refused() -> None:
    model = mlp([2, 4, 4, 1])
    with pytest.raises(ValueError, match="layers must be 'hidden' or 'all', or a selector"):
        presets.o_cola_od(model, layers="some")
    with pytest.raises(PartitionError, match="claims none of its parameters"):
        presets.c_cola_od(model, layers=embeddings)
    names = [f"{a}.weight" for a, _ in pairwise([2, 4])]
    assert constrained(presets.o_cola_od(model, layers=lambda place: place.name in names)) == set(names)


def test_a_layer_alone_has_the_same_role_in_an_ensemble():
    alone, replicas = nn.Linear(3, 4), Ensemble(lambda: nn.Linear(3, 4), 2, seed=0)
    assert [p.role for p in locate(replicas)] == [p.role for p in locate(alone)]


# ── weights that are made of other tensors, frozen, or lie beside layers ──

MADE = {  # of other tensors, the names of those that are matrices
    "parametrized weight_norm": (parametrizations.weight_norm, "1.parametrizations.weight.original1"),
    "parametrized orthogonal": (parametrizations.orthogonal, "1.parametrizations.weight.original"),
    "pruned": (lambda layer: prune.l1_unstructured(layer, "weight", 0.3), "1.weight_orig"),
    "spectral_norm": (nn.utils.spectral_norm, "1.weight_orig"),
}


@pytest.mark.parametrize("case", MADE)
@pytest.mark.parametrize("layer", [lambda: nn.Linear(4, 4), lambda: nn.Conv2d(4, 4, 2)], ids=["linear", "convolution"])
def test_what_a_weight_is_made_of_is_not_constrained_in_its_place(case: str, layer) -> None:
    make, name = MADE[case]
    model = nn.Sequential(nn.Linear(4, 4), make(layer()), nn.Linear(4, 4))
    places = {place.name: place for place in locate(model)}
    assert places["1.bias"].layer == places[name].layer == 1
    assert places[name].role == ("feed-forward" if isinstance(model[1], nn.Linear) else "convolution")
    before = {k: p.clone() for k, p in model.named_parameters()}
    for build in (
        presets.o_cola_ud,
        presets.s_cola_od,
        lambda model: partition(model, {weights: {"constraint": Circle(1.0)}, "rest": {}}),
    ):
        with pytest.raises(PartitionError, match=f"'{name}'.* would hold for this tensor, not for"):
            build(model)
    assert all(torch.equal(p, before[k]) for k, p in model.named_parameters())
    free = presets.c_cola_od(model, roles={name: "other"})
    assert constrained(free) == {"0.weight", "2.weight"}


def test_gates_of_a_parametrized_lstm_are_blocks() -> None:
    found = {p.name: p for p in locate(parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0"))}
    direction, length = (found[f"parametrizations.weight_hh_l0.original{i}"] for i in (1, 0))
    assert (direction.role, direction.blocks) == ("recurrent", 4)
    assert length.role == "bias"


@pytest.mark.parametrize("preset", [presets.o_cola_ud, presets.c_cola_od, presets.s_cola_ud])
def test_presets_leave_frozen_weights_alone(preset) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    with torch.no_grad():
        model[1].weight.mul_(9)
    model[1].requires_grad_(False)
    before = model[1].weight.clone()
    optimizer = preset(model)
    assert torch.equal(model[1].weight, before)
    assert "2.weight" in constrained(optimizer)
    assert "1.weight" not in constrained(optimizer)
    with pytest.raises(PartitionError, match="& trained claims none"):
        preset(model.requires_grad_(False))


class Experts(nn.Module):
    """Stacked experts beside layers: registered first, used in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(3, 4)
        self.router = nn.Linear(4, 2)
        self.stacked = nn.Parameter(torch.randn(2, 4, 4))
        self.head = nn.Linear(4, 3)


def test_weights_beside_layers_are_not_the_first_layer() -> None:
    model = Experts()
    assert {place.name for place in locate(model) if place.reads_input} == {"inputs.weight", "inputs.bias"}
    with pytest.raises(PartitionError, match=r"'stacked' .*Orthogonal\(view='batch'\)"):
        presets.o_cola_ud(model)
    rules = {
        weights & hidden & ~named("stacked"): {"constraint": Orthogonal()},
        "stacked": {"constraint": Orthogonal("batch")},
        "rest": {},
    }
    init_(groups := partition(model, rules, verbose=False))
    assert constrained(Langevin(groups, 0.1)) == {"router.weight", "stacked"}
    assert all(is_orthogonal(matrix) for matrix in model.stacked)


@pytest.mark.parametrize("layers", [nn.Linear, hidden, named("1.*"), lambda place: place.layer == 1])
def test_layers_of_a_preset_never_means_biases(layers) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    for preset in (presets.o_cola_ud, presets.c_cola_od, presets.s_cola_ud):
        assert not any("bias" in name for name in constrained(preset(model, layers=layers)))


@pytest.mark.parametrize(
    ("name", "outputs", "blocks"),
    [
        ("qkv_proj", 12, 3),
        ("kv_proj", 8, 2),
        ("qkv", 8, 2),
        ("qkv", 6, 0),
        ("c_attn", 16, 0),
        ("query_key_value", 12, 0),
        ("kv_proj", 4, 1),
    ],
)
def test_packed_maps_whose_sizes_are_not_known_are_refused_where_it_matters(
    name: str, outputs: int, blocks: int
) -> None:
    attention = nn.ModuleDict({name: nn.Linear(4, outputs), "out": nn.Linear(4, 4)})
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"attn": attention}), nn.Linear(4, 2))
    full = f"1.attn.{name}.weight"
    assert next(place for place in locate(model) if place.name == full).blocks == blocks
    assert full in constrained(presets.s_cola_ud(model))  # rows are rows
    if blocks:
        assert full in constrained(presets.o_cola_ud(model))
        return
    with pytest.raises(PartitionError, match=f"'{full}' packs .*Write blocks="):
        presets.o_cola_ud(model)
    assert full in constrained(presets.o_cola_ud(model, blocks={full: 2}))
    assert full not in constrained(presets.o_cola_ud(model, roles={full: "other"}))
