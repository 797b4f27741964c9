"""Partitions cover every parameter exactly once, and say so when they do not."""

import re

import pytest
import torch
from torch import nn

from holonom import Langevin, partition, presets
from holonom.constraints import Orthogonal
from holonom.errors import PartitionError
from holonom.models import mlp
from holonom.partitions import biases, first, hidden, locate, named, norms, of_type, output, role, weights


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
    )  # fmt: skip


def names(groups: list[dict]) -> list[list[str]]:
    return [[name for name, _ in group["params"]] for group in groups]


def test_by_pattern_type_and_rest(capsys: pytest.CaptureFixture[str]) -> None:
    groups = partition(model(), {"5.*": {"lr": 0.1}, nn.LayerNorm: {"lr": 0.2}, "rest": {}})
    assert names(groups) == [
        ["5.weight", "5.bias"],
        ["1.weight", "1.bias"],
        ["0.weight", "0.bias", "3.weight", "3.bias"],
    ]
    printed = capsys.readouterr().out
    assert "group 0 ('5.*'): 2 tensors, 18 parameters; lr=0.1" in printed
    assert "3.weight" in printed
    assert "8×8" in printed


def test_by_place() -> None:
    rules = {weights: {}, biases: {}}
    assert names(partition(model(), rules, verbose=False))[0] == ["0.weight", "3.weight", "5.weight"]
    rules = {first: {}, hidden: {}, output: {}}
    got = names(partition(model(), rules, verbose=False))
    assert got == [["0.weight", "0.bias", "1.weight", "1.bias"], ["3.weight", "3.bias"], ["5.weight", "5.bias"]]


def test_a_tuple_means_any_of() -> None:
    groups = partition(model(), {(nn.LayerNorm, "*.bias"): {}, "rest": {}}, verbose=False)
    assert names(groups)[1] == ["0.weight", "3.weight", "5.weight"]


def test_groups_go_straight_into_the_optimizer() -> None:
    net = model()
    opt = Langevin(partition(net, {weights: {"friction": 2.0}, biases: {}}, verbose=False), lr=0.1)
    assert opt.param_groups[0]["friction"] == 2.0
    assert opt.param_groups[0]["param_names"] == ["0.weight", "3.weight", "5.weight"]


def test_missing_double_and_idle_rules_fail_loudly() -> None:
    with pytest.raises(PartitionError, match=r"no rule claims .*'0.bias'.*'rest'"):
        partition(model(), {weights: {}}, verbose=False)
    with pytest.raises(PartitionError, match=r"claimed twice, '0.weight' by weights and '0\.\*'"):
        partition(model(), {weights: {}, "0.*": {}, "rest": {}}, verbose=False)
    with pytest.raises(PartitionError, match=r"rule '0.weigh' claims no parameter"):
        partition(model(), {"0.weigh": {}, "0.bias": {}})  # and '0.weight' is claimed by none
    with pytest.raises(PartitionError, match=r"'decoder\.\*' claims no parameter"):
        partition(model(), {"decoder.*": {}, "rest": {}}, verbose=False)
    with pytest.raises(PartitionError, match="a rule's key must be"):
        partition(model(), {3: {}}, verbose=False)


def test_shared_parameters_count_once() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    assert [place.name for place in locate(net)] == ["0.weight", "0.bias", "1.bias"]
    assert len(partition(net, {"rest": {}}, verbose=False)[0]["params"]) == 3


def test_norm_weights_are_not_matrices() -> None:
    places = {place.name: place for place in locate(model())}
    assert biases(places["1.weight"])
    assert places["1.weight"].layer == 0
    assert torch.equal(places["5.bias"].parameter, places["5.bias"].module.bias)


def test_rules_that_contradict_themselves_fail_loudly() -> None:
    with pytest.raises(PartitionError, match="given twice"):
        partition(nn.Linear(2, 2), [("rest", {}), ("rest", {"lr": 1.0})])
    with pytest.raises(PartitionError, match="sets 'params'"):
        partition(nn.Linear(2, 2), {"rest": {"params": []}})


CLAIMS = {
    "weights & hidden": (weights & hidden, ["3.weight"]),
    "~weights & ~norms": (~weights & ~norms, ["0.bias", "3.bias", "5.bias"]),
    "first | '5.*'": (first | "5.*", ["0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias"]),
    "(first | output) & weights": ((first | output) & weights, ["0.weight", "5.weight"]),
    "~(first | output)": (~(first | output), ["3.weight", "3.bias"]),
    "'*.weight' & LayerNorm": ("*.weight" & of_type(nn.LayerNorm), ["1.weight"]),
    "Linear & biases": (nn.Linear & biases, ["0.bias", "3.bias", "5.bias"]),
    "LayerNorm | role('head')": (nn.LayerNorm | role("head"), ["1.weight", "1.bias", "5.weight"]),
    "~'*.bias' & hidden": (~named("*.bias") & hidden, ["3.weight"]),
}


@pytest.mark.parametrize("label", CLAIMS)
def test_selectors_compose(label: str) -> None:
    selector, claimed = CLAIMS[label]
    assert [place.name for place in locate(model()) if selector(place)] == claimed
    assert repr(selector) == label
    groups = partition(model(), {selector: {"lr": 0.2}, "rest": {}}, verbose=False)
    assert names(groups)[0] == claimed
    assert [group["name"] for group in groups] == [label, "rest"]


def test_functions_compose_with_selectors() -> None:
    def wide(place: object) -> bool:
        return place.parameter.shape[-1] == 8  # type: ignore[attr-defined]

    groups = partition(
        model(), {weights & wide: {}, lambda place: place.name == "0.bias": {}, "rest": {}}, verbose=False
    )
    assert names(groups)[0] == ["3.weight", "5.weight"]
    assert [group["name"] for group in groups] == ["weights & wide", "rule 1", "rest"]


@pytest.mark.parametrize(
    "write", [lambda: weights and hidden, lambda: weights or hidden, lambda: not weights], ids=["and", "or", "not"]
)
def test_words_that_do_not_compose_are_refused(write) -> None:
    with pytest.raises(TypeError, match=re.escape("write &, | and ~ instead of and, or and not")):
        write()


def test_selectors_in_messages() -> None:
    with pytest.raises(PartitionError, match=r"'3\.weight' by weights & hidden and Linear"):
        partition(model(), {weights & hidden: {}, nn.Linear: {}, "rest": {}}, verbose=False)
    assert weights.__doc__ is not None
    assert weights.__doc__.startswith("Weight matrices")


def test_labels_say_what_a_selector_is() -> None:
    assert repr(~(weights & hidden)) == "~(weights & hidden)"
    assert repr(~(weights | hidden)) == "~(weights | hidden)"
    assert repr(~weights & hidden) == "~weights & hidden"


def test_a_union_of_module_types_is_a_selector() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
    groups = partition(model, {nn.Linear | nn.Conv1d: {}, "rest": {}}, verbose=False)
    assert groups[0]["name"] == "Linear | Conv1d"
    assert [name for name, _ in groups[1]["params"]] == ["1.weight", "1.bias"]


def test_what_is_printed_are_the_optimizers_groups(capsys) -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Linear(2, 2))
    groups = partition(model, {weights: {"constraint": Orthogonal()}, biases: {"lr": 0.3}})
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("group")]
    assert len(shown) == len(groups) == 3
    assert shown[1].startswith("group 1 (weights (2)): 1 tensors, 4 parameters; constraint=Orthogonal(view=None")
    assert shown[2] == "group 2 (biases): 2 tensors, 4 parameters; lr=0.3"


@pytest.mark.parametrize("rules", [[weights, biases], {weights: None, "rest": {}}, [(weights, {}, 1)]], ids=str)
def test_rules_that_are_no_pairs_are_refused(rules) -> None:
    with pytest.raises(PartitionError, match="a rule is a selector and a dict of options"):
        partition(nn.Linear(2, 2), rules)


def test_partition_wants_a_model_and_dicts() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="give the model itself, not a generator"):
        partition(model.parameters(), {weights: {}})
    with pytest.raises(TypeError, match="roles must be a dict"):
        partition(model, {weights: {}, "rest": {}}, roles=["attention"])


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (weights & ~named("frist.*"), r"in weights & ~'frist.\*', 'frist.\*' matches no parameter"),
        (("0.weight", "2.weigth"), r"in '0\.weight' \| '2\.weigth', '2\.weigth' matches no .*did you mean '2\.weight'"),
        (norms | "2.weigth" | "0.weight", r"did you mean '2\.weight'"),
    ],
)
def test_a_name_in_a_rule_that_is_no_parameters_is_warned_about(rule, said) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.warns(UserWarning, match=said) as caught:
        partition(model, {rule: {}, "rest": {}}, verbose=False)
    assert caught[0].filename == __file__


def test_the_other_name_of_a_tied_weight_is_named() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    model["head"].weight = model["embed"].weight
    with pytest.raises(PartitionError, match=r"'head\.weight' is another name of 'embed\.weight', the same tensor"):
        partition(model, {"head.weight": {}, "rest": {}})
    with pytest.warns(UserWarning, match=r"'head\.weight' is another name of 'embed\.weight'"):
        partition(model, {weights & ~named("head.weight"): {}, "rest": {}}, verbose=False)


@pytest.mark.filterwarnings("ignore:weights that did not satisfy")
def test_presets_warn_about_such_names_too() -> None:
    model = mlp([2, 3, 3, 1])
    for build in (presets.o_cola_ud, presets.c_cola_od, presets.adamh):
        with pytest.warns(UserWarning, match=r"'4\.wieght' matches no parameter: did you mean '4\.weight'"):
            build(model, layers=hidden & ~named("4.wieght"))
