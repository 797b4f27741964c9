"""constrain on DTensors: the weights of a single process, on every rank, with few collectives."""

import warnings

import pytest
import torch
import torch.distributed as dist
from benchmarks.scaling import BEGIN, DOCS, exchange_bytes, owned, sum_bytes, written
from torch import nn

import holonom

from . import networks, saved
from .held import BLOCKS, SPACES, Case, run, run_all, run_apart
from .ranks import run as on_ranks
from .refusals import REFUSED, edited_weights, ensembles, failing_function, failing_steps, level_set_warnings, refused

pytestmark = [
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo"),
    pytest.mark.filterwarnings("ignore:weights that did not satisfy"),
]
distributed = pytest.mark.distributed

# Two ranks have three numbers for each of five matrices (the sixth, of one row, is whole), in double precision.
SENT = {
    Case("matrices", "tangent", "fsdp"): {"all_reduce": (1, 5 * 3 * 8)},
    Case("matrices", "plain", "fsdp"): {"all_reduce": (1, 5 * 8)},
    Case("rows", "tangent", "rows"): {},
    Case("columns", "angular", "columns"): {},
    Case("circle", "plain", "columns"): {},
    Case("rows", "tangent", "columns"): {"all_reduce": (1, (6 + 10 + 7 + 1 + 6 + 6) * 3 * 8)},
}
SMALL = [*SENT, Case("orthogonal", "tangent", "mixed"), Case("heads out", "tangent", "rows")]

FSDP = [("fsdp", (4,)), ("fsdp", (2, 2))]
PARALLEL = [
    ("columns", (4,)),
    ("mixed", (4,)),
    ("rows+columns", (2, 2)),
    ("copies+columns", (2, 2)),
    ("rows+rows", (2, 2)),
]
PROJECTED, DROPPED, TRACKED = (("momentum", "project"),), (("decay", "drop"),), (("track", True),)
TURNED = ("rows", "columns", "matrices", "number", "heads out", "heads in")
UPDATES = {
    space: ("plain", "tangent", "angular") if space in TURNED else ("plain", "tangent") for space in [*SPACES, *BLOCKS]
}
UPDATES |= dict.fromkeys(("spectral", "level"), ("plain",))
TABLE = [
    *((Case(s, u, placement), mesh) for s, us in UPDATES.items() for u in us for placement, mesh in FSDP),
    *((Case(s, us[-1], placement), mesh) for s, us in UPDATES.items() for placement, mesh in PARALLEL),
    *((Case(s, "tangent", "rows", options=PROJECTED, optimizer=o), (4,))
      for s in ("rows", "matrices", "ball", "orthogonal", "heads in") for o in ("adamw", "sgd")),
    *((Case(s, u, "fsdp", options=DROPPED), (4,)) for s in ("rows", "matrices", "orthogonal") for u in UPDATES[s]),
    *((Case(s, "plain", "fsdp", options=TRACKED), (4,)) for s in ("rows", "matrices", "orthogonal", "circle", "level")),
    *((Case(s, u, "rows+columns", "float32"), (2, 2)) for s in ("rows", "matrices", "orthogonal") for u in UPDATES[s]),
    *((Case(s, u, "fsdp", "bfloat16"), (4,)) for s in ("rows", "matrices", "orthogonal", "circle") for u in UPDATES[s]),
]  # fmt: skip
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 1e-2}


def assert_follows(case, ranks):
    """Every rank ends where a single process ends; what is not reduced is equal bit for bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = run(case)
    allowed = {"rtol": 0, "atol": 0 if case.space == "circle" else TOLERANCE[case.dtype]}
    for found in ranks:
        for key in ("weights", "state", "momenta", "angles"):
            torch.testing.assert_close(
                found[key], alone[key], **(allowed if key != "angles" else {"rtol": 0, "atol": TOLERANCE[case.dtype]})
            )
        torch.testing.assert_close(found["residuals"], alone["residuals"], rtol=0, atol=TOLERANCE[case.dtype])
        calls = [{kind: count for kind, (count, _) in one["sent"].items()} for one in (found, ranks[0])]
        assert calls[0] == calls[1]


# --- two ranks, by default -------------------------------------------------------------------------------------------


def two_ranks():
    warnings.simplefilter("ignore")
    found = run_all([(case, (2,)) for case in SMALL])
    return {
        "cases": found,
        "refused": {name: refused(spoil) for name, (spoil, *_) in REFUSED.items()},
        "failing": failing_steps(),
        "edited": edited_weights(),
        "function": failing_function(),
        "said": level_set_warnings(),
        "ensembles": ensembles(),
    }


@pytest.fixture(scope="module")
def two():
    return on_ranks(2, two_ranks)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_two_ranks_follow_one_process(two, case):
    assert_follows(case, [found["cases"][SMALL.index(case)] for found in two])


@pytest.mark.parametrize("case", SENT, ids=str)
def test_a_step_sends_one_sum_or_nothing(two, case):
    for found in two:
        assert found["cases"][SMALL.index(case)]["sent"] == SENT[case]
    if case.space == "matrices":
        assert SENT[case] == {"all_reduce": (1, sum_bytes(5, case.update))}


def test_whole_matrices_go_to_their_owners_and_back(two):
    """Old and new weights go, new ones come back, to and from the other rank and the owner itself, and a flag each."""
    calls, sent = zip(
        *(found["cases"][SMALL.index(Case("orthogonal", "tangent", "mixed"))]["sent"]["all_to_all"] for found in two),
        strict=True,
    )
    entries = 6 * 10 + 10 * 6 + 6 * 6 + 6 * 10  # of a, b, e and f: c and d are copies, or plain
    assert calls == (2, 2)
    assert sum(sent) == 8 * (2 * entries + entries + 2 * 4) == exchange_bytes(entries, 4, 2, "tangent", 8)


def test_what_is_computed_for_many_ranks_is_written_down():
    page = (DOCS / "scaling.md").read_text()
    assert BEGIN in page
    assert written(page) == page
    assert owned([(2, 3), (4, 5), (6, 1)], 2) == 20


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_on_all_ranks(two, name):
    _, kind, message = REFUSED[name]
    answers = [found["refused"][name] for found in two]
    assert all(answer is not None and issubclass(answer[0], kind) for answer in answers), answers
    assert all(message in text and untouched for _, text, untouched in answers), answers


def test_a_step_that_one_rank_cannot_take_is_an_error_on_all(two):
    owners, holders = zip(*(found["failing"] for found in two), strict=True)
    assert all("'a.weight'" in text for text in owners), owners
    assert "another rank" in holders[0], holders
    assert "'stack': no root" in holders[1], holders


def test_weights_of_one_rank_that_became_nan_are_an_error_on_all(two):
    """Of plain weights by the reduction that sums of spheres take; of an owner's, with the weights it sends."""
    for number, name in enumerate(("stack", "stack", "b.weight")):
        sent, *said = zip(*(found["edited"][number] for found in two), strict=True)
        assert sent == (1, 1)
        for both in said:
            assert sum("another rank" in text for text in both) == 1, both
            assert sum(f"'{name}'" in text and "hold NaN" in text for text in both) == 1, both


def test_an_error_of_a_level_sets_function_on_its_owner_is_one_on_all(two):
    (first, *stayed), (second, *others) = (found["function"] for found in two)
    assert stayed + others == [True, True]
    assert "IndexError: of a user's function" in (first, second)
    assert any("ProjectionError: 'a.weight': another rank, which owns" in text for text in (first, second))


def test_level_sets_on_shards_are_warned_about_once(two):
    assert all(len(found["said"]) == 1 and "2 of them, such as 'a.weight'" in found["said"][0] for found in two)


def test_an_ensemble_over_ranks_is_the_one_of_a_single_process(two):
    alone = holonom.Ensemble(lambda: nn.Linear(3, 2), 5, seed=4, repeats=2)
    opt = holonom.Langevin(alone.parameters(), 0.1, temperature=torch.linspace(0.0, 0.1, 10), seed=alone.seeds)
    before = alone.weight.detach().clone()
    alone.losses(nn.functional.mse_loss, torch.ones(4, 3), torch.zeros(4, 2)).sum().backward()
    opt.step()
    assert [found["ensembles"]["here"] for found in two] == [4, 6]
    for found in (found["ensembles"] for found in two):
        assert torch.equal(found["seeds"], alone.seeds)
        assert torch.equal(found["weight"], before)
        torch.testing.assert_close(found["after"], alone.weight.detach(), rtol=1e-6, atol=1e-6)
        few, different, unseeded = found["errors"]
        assert "1 replicas cannot be split over 2 ranks" in few
        assert "ranks ask for different ensembles" in different
        assert "no seed" in unseeded


# --- the table ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four():
    return on_ranks(4, run_all, TABLE)


@distributed
@pytest.mark.parametrize("number", range(len(TABLE)), ids=[f"{case} {mesh}" for case, mesh in TABLE])
def test_four_ranks_follow_one_process(four, number):
    assert_follows(TABLE[number][0], [found[number] for found in four])


APART = [
    *((Case(s, us[-1], "rows+columns"), (2, 2)) for s, us in UPDATES.items()),
    *((Case(s, "tangent", "rows+columns", options=PROJECTED), (2, 2)) for s in ("matrices", "orthogonal")),
]


@pytest.fixture(scope="module")
def four_apart():
    return on_ranks(4, run_apart, APART)


@distributed
@pytest.mark.parametrize("number", range(len(APART)), ids=[str(case) for case, _ in APART])
def test_dimensions_of_a_mesh_without_a_group_of_both(four_apart, number):
    assert_follows(APART[number][0], [found[number] for found in four_apart])
    assert "all_to_all" not in four_apart[0][number]["sent"]


@distributed
def test_a_step_takes_few_collectives(four):
    """One sum over each dimension of the mesh that cuts blocks, and two all-to-all for each set of ranks."""
    for number, (case, mesh) in enumerate(TABLE):
        sent, several = four[0][number]["sent"], case.placement in ("rows+columns", "tp+fsdp")
        sums, exchanges = (sent.get(kind, (0, 0))[0] for kind in ("all_reduce", "all_to_all"))
        often = (2 if case.options == PROJECTED else 1) * (2 if several else 1)
        assert sums <= often, (str(case), mesh, sent)
        assert exchanges <= 2 * often, (str(case), mesh, sent)


@pytest.fixture(scope="module")
def trained():
    return on_ranks(2, networks.train_all)


@distributed
@pytest.mark.parametrize("kind", networks.KINDS)
def test_a_transformer_in_shards_follows_one_process(trained, kind):
    alone = networks.train(kind, False)
    for found in trained:
        torch.testing.assert_close(found[kind], alone, rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    written = on_ranks(4, saved.write, folder, 4)[0]
    return written, {world: on_ranks(world, saved.read, folder, world) for world in (1, 2)}


@distributed
@pytest.mark.parametrize("kind", ["dcp", "held", "full"])
@pytest.mark.parametrize("number", range(len(saved.CASES)), ids=map(str, saved.CASES))
def test_checkpoints_of_four_ranks_load_on_two_and_on_one(checkpoints, number, kind):
    written, read = checkpoints
    for world, ranks in read.items():
        for found in ranks:
            loaded, later = found[number][kind]
            for name, value in written[number].items():
                if kind != "held" or not name.startswith(("exp_avg", "momentum_buffer")):
                    assert torch.equal(loaded[name], value), (world, name)
            assert all(x.isfinite().all() for x in later.values())
