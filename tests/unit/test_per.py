"""What a block is: by the module, by ``blocks``, or by a view; what cannot be read is refused with what to write."""

import re

import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, partition
from holonom.constraints import Orthogonal, Spectral, Sphere, View
from holonom.errors import ConstraintError, PartitionError
from holonom.models import VisionTransformer
from holonom.partitions import locate, role, weights

ATTENTION = {  # a module, and of every parameter that has heads: outputs before inputs? how many
    "torch": (lambda: nn.MultiheadAttention(6, 3), {"in_proj_weight": (0, 9), "out_proj.weight": (1, 3)}),
    "torch, apart": (
        lambda: nn.MultiheadAttention(6, 3, kdim=5, vdim=4),
        {"q_proj_weight": (0, 3), "k_proj_weight": (0, 3), "v_proj_weight": (0, 3), "out_proj.weight": (1, 3)},
    ),
    "GPT-2": (
        lambda: Attention(c_attn=Conv1D(6, 18), c_proj=Conv1D(6, 6), n_head=3),
        {"attn.c_attn.weight": (1, 9), "attn.c_proj.weight": (0, 3)},
    ),
    "grouped queries, by their size": (
        lambda: Attention(q_proj=linear(8, 8), k_proj=linear(8, 4), o_proj=linear(8, 8), head_dim=2),
        {"attn.q_proj.weight": (0, 4), "attn.k_proj.weight": (0, 2), "attn.o_proj.weight": (1, 4)},
    ),
    "grouped queries, by their number": (
        lambda: Attention(wq=linear(8, 8), wk=linear(8, 4), wo=linear(8, 8), n_heads=4, n_kv_heads=2),
        {"attn.wq.weight": (0, 4), "attn.wk.weight": (0, 2), "attn.wo.weight": (1, 4)},
    ),
    "mixed": (
        lambda: Attention(query_key_value=linear(8, 16), dense=linear(8, 8), head_size=2),
        {"attn.query_key_value.weight": (0, 8), "attn.dense.weight": (1, 4)},
    ),
    "in a list": (lambda: Attention(to_q=linear(6, 6), to_out=nn.Sequential(linear(6, 6)), heads=2),
                  {"attn.to_q.weight": (0, 2), "attn.to_out.0.weight": (1, 2)}),
    "number in a config": (
        lambda: Attention(q=linear(6, 6), out=linear(6, 6), config=Config(num_attention_heads=3)),
        {"attn.q.weight": (0, 3), "attn.out.weight": (1, 3)},
    ),
    "number in a part": (
        lambda: Attention(inner=Attention(query=linear(6, 6), num_attention_heads=2).attn, dense=linear(6, 6)),
        {"attn.inner.query.weight": (0, 2), "attn.dense.weight": (1, 2)},
    ),
}  # fmt: skip


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


class Attention(nn.Module):
    """Maps and numbers in a module called attn."""

    def __init__(self, **parts):
        super().__init__()
        self.attn = nn.Module()
        for name, part in parts.items():
            setattr(self.attn, name, part)


class Conv1D(nn.Module):
    """A linear map stored as (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


@pytest.mark.parametrize("case", ATTENTION)
def test_heads_are_found_by_the_modules(case):
    make, expected = ATTENTION[case]
    model = make()
    found = {place.name: place.heads for place in locate(model) if place.heads is not None}
    assert found == {name: View(0, *where) for name, where in expected.items()}
    groups = partition(model, {weights: {"constraint": Sphere("initial", per="head")}, "rest": {}}, verbose=False)
    spaces = {name: group.get("constraint") for group in groups for name, _ in group["params"]}
    opt = Langevin(groups)
    for name, (_, count) in expected.items():
        p = model.get_parameter(name)
        assert spaces[name].block_view == found[name]
        assert opt.state[p]["radius"].shape == (count,)
        assert spaces[name].degrees_of_freedom(p) == p.numel() - count


def test_replicas_have_the_heads_of_their_model():
    ensemble = Ensemble(lambda: VisionTransformer(width=8, heads=2, blocks=1, hidden=6), 3, seed=0)
    rules = {role("attention"): {"constraint": Sphere("initial", per="head")}, "rest": {}}
    several = Langevin(partition(ensemble, rules, verbose=False))
    for i, model in enumerate(ensemble.unstack()):
        alone = Langevin(partition(model, rules, verbose=False))
        for name, count in (("inputs", 6), ("output", 2)):
            p, q = (m.get_parameter(f"blocks.0.attention.{name}.weight") for m in (model, ensemble))
            assert alone.state[p]["radius"].shape == (count,)
            torch.testing.assert_close(several.state[q]["radius"][i], alone.state[p]["radius"])


def test_every_head_is_orthogonal_by_itself():
    model = nn.MultiheadAttention(6, 3)
    rules = {weights: {"constraint": Orthogonal(per="head")}, "rest": {}}
    with pytest.warns(UserWarning, match="Orthogonal: 12 of 12"):
        Langevin(partition(model, rules, verbose=False))
    for head in model.in_proj_weight.detach().reshape(9, 2, 6):
        torch.testing.assert_close(head @ head.T, torch.eye(2))
    for head in model.out_proj.weight.detach().T.reshape(3, 2, 6):
        torch.testing.assert_close(head @ head.T, torch.eye(2))


def test_the_user_says_how_many_heads_there_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 2))
    rules = {"1.weight": {"constraint": Sphere(per="head")}, "rest": {}}
    groups = partition(model, rules, blocks={"1.weight": 3}, verbose=False)
    assert groups[0]["constraint"].block_view == View(blocks=3)
    attention = nn.MultiheadAttention(8, 2)
    rules = {weights: {"constraint": Sphere(per="head")}, "rest": {}}
    groups = partition(attention, rules, blocks={"*.weight": 4}, verbose=False)
    by_name = {name: group["constraint"].block_view for group in groups[:2] for name, _ in group["params"]}
    assert by_name == {"in_proj_weight": View(blocks=6), "out_proj.weight": View(output=1, blocks=4)}


def radii(model, name, space):
    groups = partition(model, {name: {"constraint": space}, "rest": {}}, verbose=False)
    return Langevin(groups).state[model.get_parameter(name)]["radius"]


def test_packed_matrices_are_blocks_and_together_a_matrix():
    lstm = nn.LSTM(3, 4)
    gates = lstm.weight_hh_l0.detach().reshape(4, 16).norm(dim=1)
    torch.testing.assert_close(radii(lstm, "weight_hh_l0", Sphere("initial", per="block")), gates)
    torch.testing.assert_close(radii(lstm, "weight_hh_l0", Sphere("initial", per="matrix")), gates.norm())
    grouped = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2))
    kernels = grouped[0].weight.detach()
    torch.testing.assert_close(
        radii(grouped, "0.weight", Sphere("initial", per="block")), kernels.reshape(2, -1).norm(dim=1)
    )
    torch.testing.assert_close(
        radii(grouped, "0.weight", Sphere("initial", per="column")), kernels.reshape(6, 18).norm(dim=0)
    )
    plain = nn.Sequential(nn.Linear(3, 5))
    torch.testing.assert_close(
        radii(plain, "0.weight", Sphere("initial", per="block")), plain[0].weight.detach().norm()
    )


def test_groups_of_a_transposed_convolution_have_norms_but_no_rows():
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2))
    kernels = model[0].weight.detach()
    torch.testing.assert_close(
        radii(model, "0.weight", Sphere("initial", per="block")), kernels.reshape(2, -1).norm(dim=1)
    )
    torch.testing.assert_close(radii(model, "0.weight", Sphere("initial", per="matrix")), kernels.norm())
    for space in (Sphere("initial"), Sphere("initial", per="column"), Orthogonal(per="matrix"), Orthogonal()):
        with pytest.raises(PartitionError, match="a transposed convolution with 2 groups"):
            radii(model, "0.weight", space)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.stack = nn.Parameter(torch.randn(3, 6, 4))
        self.last = nn.Linear(4, 4)


def test_experts_of_a_stack_are_apart():
    model = Experts()
    own = model.stack.detach()
    torch.testing.assert_close(radii(model, "stack", Sphere("initial", per="matrix")), own.flatten(1).norm(dim=1))
    torch.testing.assert_close(radii(model, "stack", Sphere("initial", per="column")), own.norm(dim=1))
    torch.testing.assert_close(radii(model, "stack", Sphere("initial", per="block")), own.flatten(1).norm(dim=1))
    torch.testing.assert_close(radii(model, "stack", Sphere("initial", view="batch")), own.norm(dim=2))
    rules = {"stack": {"constraint": Sphere("initial", per="block")}, "rest": {}}
    groups = partition(model, rules, blocks={"stack": 2}, verbose=False)
    torch.testing.assert_close(Langevin(groups).state[model.stack]["radius"], own.reshape(3, 2, 12).norm(dim=2))
    space = Orthogonal(per="matrix", scale="initial")
    with pytest.warns(UserWarning, match="Orthogonal: 3 of 3"):
        torch.testing.assert_close(radii(model, "stack", space), own.flatten(1).norm(dim=1) / 2)
    for space in (Sphere(), Orthogonal()):
        with pytest.raises(PartitionError, match=r"'stack' of shape \(3, 6, 4\).*or with per='matrix'"):
            partition(model, {"stack": {"constraint": space}, "rest": {}}, verbose=False)


def build(space, shape=(4, 3), fill=1.0):
    return Langevin([nn.Parameter(torch.full(shape, fill))], constraint=space)


def claim(model, space, **options):
    return partition(model, {"*": {"constraint": space}}, **options)


REFUSED = [
    (lambda: Sphere(per="rows"), "Sphere: per must be one of 'row', 'column', 'matrix', 'head', 'block', got 'rows'"),
    (lambda: Orthogonal(per="row"), "Orthogonal: per must be one of 'matrix', 'head', 'block', got 'row'"),
    (lambda: Sphere("initial", factor=0.0), "Sphere: factor must be a positive number, got 0.0"),
    (lambda: Sphere("initial", factor=-1.0), "Sphere: factor must be a positive number, got -1.0"),
    (lambda: Sphere("initial", factor=True), "Sphere: factor must be a positive number, got True"),
    (lambda: Sphere(2.0, factor=3.0), "Sphere: factor=3.0 multiplies the norms of radius='initial'; give radius=2.0"),
    (lambda: Sphere("first"), "Sphere: a radius is a number or a tensor (torch.tensor(…)), got 'first'; a sphere also"),
    (lambda: Orthogonal(scale=0.0), "Orthogonal: scale must be a positive number or 'initial', got 0.0"),
    (lambda: Orthogonal(scale="first"), "Orthogonal: scale must be a positive number or 'initial', got 'first'"),
    (lambda: build(Sphere(torch.ones(3), per="matrix")), "(3,) radii for matrices of shape ()"),
    (lambda: build(Sphere(torch.ones(4), per="column")), "(4,) radii for columns of shape (3,); give one"),
    (lambda: build(Sphere(torch.ones(3), per="block", view=View(blocks=2))), "(3,) radii for blocks of shape (2,)"),
    (lambda: build(Sphere(per="head")), "per='head' needs the number of heads: view=View(blocks=n)"),
    (lambda: build(Orthogonal(per="head")), "per='head' needs the number of heads: view=View(blocks=n)"),
    (lambda: build(Sphere(per="head", view=View(blocks=3))), "4 outputs are not 3 blocks of one size"),
    (lambda: build(Sphere(per="block", view=View(blocks=0))), "View: blocks must be a whole number"),
    (lambda: build(Sphere(per="column"), (4,)), "Sphere on parameter 0 of shape (4,): per='column' needs a matrix"),
    (lambda: build(Sphere(per="matrix"), ()), "a scalar has no rows; use Circle"),
    (lambda: build(Sphere(), (3, 2, 2)), "or per='matrix', which makes each matrix of a stack a block"),
    (lambda: build(Sphere("initial"), fill=0.0), "Sphere(radius='initial') on parameter 0: 4 of 4 blocks are zero"),
    (lambda: build(Sphere("initial", per="matrix"), fill=0.0), "on parameter 0: 1 of 1 blocks are zero"),
    (lambda: build(Orthogonal(scale="initial"), fill=0.0), "Orthogonal(scale='initial') on parameter 0: 1 of 1 blocks"),
    (lambda: build(Sphere(slack=False, per="matrix"), fill=0.0), "a block (per='matrix') is zero"),
    (
        lambda: claim(nn.Linear(3, 4, bias=False), Sphere(per="head")),
        "'weight': per='head' needs the number of attention heads, which its module Linear (role 'head') does not say. "
        "Write blocks={'weight': n}",
    ),
    (lambda: claim(nn.Linear(3, 4), None, blocks={"weight": 0}), "blocks['weight'] must be a whole number of at least"),
    (lambda: claim(nn.Linear(3, 4), None, blocks={"weight": 3}), "4 outputs of 'weight' are not 3 equal blocks"),
    (
        lambda: claim(ATTENTION["mixed"][0](), Sphere(per="block")),
        "Sphere would couple them. Write blocks={'attn.query_key_value.weight': n} for n matrices of one size; in "
        "holonom.partition Sphere(per='head')",
    ),
    (lambda: claim(ATTENTION["mixed"][0](), Spectral(1.0)), "Spectral would couple them"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refusals_say_what_to_write(make, message):
    with pytest.raises((ConstraintError, PartitionError), match=re.escape(message)):
        make()


def test_a_printed_optimizer_says_what_its_blocks_are(capsys):
    model = nn.TransformerEncoderLayer(6, 3, 8)
    rules = {
        role("attention"): {"constraint": Sphere("initial", per="head", factor=2.0)},
        role("feed-forward"): {"constraint": Orthogonal(scale=2.0)},
        "rest": {},
    }
    with pytest.warns(UserWarning, match="Orthogonal: 2 of 2"):
        printed = repr(Langevin(partition(model, rules)))
    assert "per='head', factor=2.0" in capsys.readouterr().out
    view = "View(batch=0, output=1, blocks=3)"
    assert f"Sphere(radius='initial', slack=False, view={view}, margin=0.001, per='head', factor=2.0)" in printed
    assert "Orthogonal(view=None, iterations=None, tolerance=None, scale=2.0)" in printed


def test_what_was_written_before_reads_as_before():
    assert repr(Sphere(1.0)) == "Sphere(radius=1.0, slack=True, view='auto', margin=0.001)"
    assert repr(Sphere(1.0, None)) == repr(Sphere(1.0, True)) == repr(Sphere())
    assert not Sphere("initial").has_slack
    assert Sphere("initial", slack=True).has_slack
    assert Sphere(1.0, False, "conv", 0.01).margin == 0.01
