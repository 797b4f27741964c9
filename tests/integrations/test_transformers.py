"""Models of ``transformers``, built from configurations: every matrix has the role its name says."""

import re

import pytest
import torch
from torch import Tensor, nn

from holonom import Langevin, presets
from holonom.constraints import View
from holonom.partitions import locate

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore:weights that did not satisfy")]
transformers = pytest.importorskip("transformers")

WIDTH = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(kind: str = "GPT2LMHeadModel", **options) -> nn.Module:
    sizes = {"vocab_size": 30, "n_positions": 8, "n_embd": 12, "n_layer": 2, "n_head": 3}
    return getattr(transformers, kind)(transformers.GPT2Config(**sizes, **SPECIAL, **options))


def bert(kind: str) -> nn.Module:
    return getattr(transformers, kind)(transformers.BertConfig(vocab_size=30, max_position_embeddings=8, **WIDTH))


def vit(kind: str) -> nn.Module:
    return getattr(transformers, kind)(transformers.ViTConfig(image_size=8, patch_size=4, **WIDTH))


MODELS = {
    "GPT-2": gpt2,
    "GPT-2 without a head": lambda: gpt2("GPT2Model"),
    "GPT-2, untied, with cross attention": lambda: gpt2(tie_word_embeddings=False, add_cross_attention=True),
    "GPT-2 for classes": lambda: gpt2("GPT2ForSequenceClassification", pad_token_id=0),
    "BERT": lambda: bert("BertModel"),
    "BERT for words": lambda: bert("BertForMaskedLM"),
    "BERT for classes": lambda: bert("BertForSequenceClassification"),
    "ViT": lambda: vit("ViTModel"),
    "ViT for classes": lambda: vit("ViTForImageClassification"),
}
EXPECTED = (  # of matrices and kernels; the first that matches decides
    (r"\.?(wpe|position_embeddings|cls_token)(\.weight)?$", "position"),
    (r"embeddings|wte", "embedding"),
    (r"(^|\.)(lm_head|score|classifier|pooler|cls)\.", "head"),
    (r"(attn|attention)\.", "attention"),
    (r"mlp\.|intermediate\.|output\.", "feed-forward"),
)


def expected(name: str) -> str:
    return next(role for pattern, role in EXPECTED if re.search(pattern, name))


def constrained(optimizer: Langevin) -> set[str]:
    return {name for g in optimizer.param_groups if g["constraint"] != "Free()" for name in g["param_names"]}


def is_orthogonal(matrix: Tensor) -> bool:
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    return bool((tall.T @ tall - torch.eye(tall.shape[1])).abs().max() < 1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_has_its_role(name: str) -> None:
    model = MODELS[name]()
    tied = name in ("GPT-2", "BERT for words")
    for place in locate(model):
        if place.ndim < 2:
            assert place.role in ("norm", "bias")
        elif tied and place.name.endswith(("wte.weight", "word_embeddings.weight")):
            assert place.role == "tied head"
        else:
            assert (place.name, place.role) == (place.name, expected(place.name))


@pytest.mark.parametrize("name", MODELS)
def test_o_cola_constrains_attention_and_feed_forward_matrices_alone(name: str) -> None:
    model = MODELS[name]()
    matrices = [p for p, tensor in model.named_parameters() if tensor.ndim >= 2]
    wanted = {p for p in matrices if expected(p) in ("attention", "feed-forward")}
    optimizer = presets.o_cola_od(model)
    assert constrained(optimizer) == wanted
    assert len(wanted) >= 8
    assert max(optimizer.residuals()) < 1e-5


def test_gpt2_reads_conv1d_by_its_outputs_and_blocks() -> None:
    torch.manual_seed(0)
    model = gpt2(add_cross_attention=True)
    views = {place.name.removeprefix("transformer.h.0."): place.view for place in locate(model)}
    assert views["attn.c_attn.weight"] == View(output=1, blocks=3)
    assert views["crossattention.c_attn.weight"] == View(output=1, blocks=2)
    assert views["crossattention.q_attn.weight"] == View(output=1)
    assert views["mlp.c_fc.weight"] == View(output=1)
    optimizer = presets.o_cola_od(model, lr=0.01)
    tokens = torch.randint(30, (2, 6))
    memory = torch.randn(2, 3, 12)
    for _ in range(3):
        optimizer.zero_grad()
        model(tokens, labels=tokens, encoder_hidden_states=memory).loss.backward()
        optimizer.step()
    block = model.transformer.h[1]
    assert all(is_orthogonal(part) for part in block.attn.c_attn.weight.detach().chunk(3, dim=1))
    assert all(is_orthogonal(part) for part in block.crossattention.c_attn.weight.detach().chunk(2, dim=1))
    assert is_orthogonal(block.mlp.c_proj.weight.detach())
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("name", MODELS)
def test_spheres_hold_one_output_each(name: str) -> None:
    model = MODELS[name]()
    optimizer = presets.s_cola_ud(model, radius=0.3, slack=False)
    for place in locate(model):
        if place.name in constrained(optimizer):
            outputs = place.parameter.detach().movedim(place.view.output, 0).flatten(1)
            torch.testing.assert_close(outputs.norm(dim=1), torch.full((len(outputs),), 0.3))
