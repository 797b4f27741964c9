"""Langevin on DTensors: the run of one process, whatever the number of ranks and the placement."""

import re

import pytest
import torch
import torch.distributed as dist

from tests.contract.cases import CASES, Case

from . import checkpoints, ranks, runs, scenarios

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="needs torch with gloo")
distributed = pytest.mark.distributed

FEW = [Case("BAOAB", "circle"), Case("BACDEDCAB", "sphere"), Case("BAOAB", "orthogonal")]
EXACT = ("free", "circle")
SUMMED = ("temperature", "thermostat")  # what is summed over ranks


def short():
    return runs.table(FEW, ["rows", "columns"]), scenarios.traffic(), scenarios.bad_steps()


@pytest.fixture(scope="module")
def two():
    """The representative of the default tests: one start of two processes."""
    return ranks.run(2, short)


def assert_same_run(found, case, bits):
    for key, value in runs.run(case).items():
        for own in found:
            exact = bits and not key.endswith(SUMMED)
            limit = 0.0 if exact else 2e-6
            torch.testing.assert_close({key: own[key]}, {key: value}, rtol=limit, atol=limit, equal_nan=True)


def is_exact(case):
    """Nothing in the weights' motion is summed over ranks."""
    return case.space.startswith(EXACT) and "E" not in case.scheme


@pytest.mark.parametrize("placement", ["rows", "columns"])
@pytest.mark.parametrize("case", FEW, ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_few_runs_are_those_of_one_process(two, case, placement):
    assert_same_run([tables[f"{case} {placement}"] for tables, *_ in two], case, is_exact(case))


CHECK = 5 * 8  # what every step starts with: three flags, and on a CPU what tells ranks that differ
SUMS = {  # all-reduces of a step, and their bytes; Net has 6 rows and 3 columns, or the other way round
    "BAOAB-free rows": (1, CHECK),
    "BAOAB-free columns": (1, CHECK),
    "BAOAB-circle rows": (1, CHECK),
    "BAOAB-circle columns": (1, CHECK),
    "BACDEDCAB-circle rows": (2, CHECK + 8),
    "BAOAB-sphere rows": (1, CHECK),
    "BAOAB-sphere columns": (3, CHECK + 15 * 8 + 2 * 15 * 3 * 4),  # two drifts, three numbers a row
    "BAOAB-sphere-matrix rows": (3, CHECK + 3 * 8 + 2 * 3 * 3 * 4),
    "BAOAB-sphere-matrix columns": (3, CHECK + 3 * 8 + 2 * 3 * 3 * 4),
    "BAOAB-orthogonal rows": (2, CHECK + 8),  # and whether all projections had a root
}


def test_what_a_step_sends(two):
    for name, (calls, sizes) in SUMS.items():
        for _, traffic, _ in two:
            found, found_bytes = traffic[name]
            assert (found["all_reduce"], found_bytes["all_reduce"]) == (calls, sizes), name
            assert set(found) <= {"all_reduce", "all_to_all"}


def test_matrices_are_exchanged_twice(two):
    """A rank sends the gradients of the matrices it does not own away, and gets their weights back."""
    for name in ("BAOAB-orthogonal rows", "BAOAB-orthogonal columns"):
        found = [traffic[name] for _, traffic, _ in two]
        assert [calls["all_to_all"] for calls, _ in found] == [2, 2]
        assert sum(sizes["all_to_all"] for _, sizes in found) == 2 * 3 * 18 * 4  # three matrices of 18 entries


def test_a_step_that_one_rank_cannot_take_is_refused_on_all(two):
    first, second = (found for *_, found in two)
    assert first["nan"].startswith("NonFiniteGradientError: another rank")
    assert "step 0: the gradient of 'w' has 1 of 12 entries" in second["nan"]
    assert "ConstraintError" in second["nan weight"]
    assert "another rank refused" in first["nan weight"]
    for attempt in zip(first["nan weight of an owner"], second["nan weight of an owner"], strict=True):
        said = sorted(attempt)
        assert "ConstraintError" in said[0], attempt
        assert "another rank refused" in said[1], attempt
    assert sorted("another rank" in found["no root"] for found in (first, second)) == [False, True]
    for found in (first, second):
        assert found["nan changed nothing"]
        assert found["no root changed nothing"]
        assert found["after nan"] == found["after nan weight"] == ""
        assert "'w': the weights hold NaN" in found["nan weight of a spread sphere"]
        assert "redistribute the gradient" in found["gradient placed otherwise"]
        assert "ProjectionError" in found["no root"]


def test_a_step_that_one_rank_cannot_project_is_refused_on_all_where_no_rank_shares_its_weights(two):
    (first, second) = (found["no root of plain weights"] for *_, found in two)
    for number in (0, 1):
        assert re.match("ProjectionError: another rank .*Lower lr$", first[number]), first
        assert re.match("ProjectionError: 'plain': .*did not converge(?!.*moved$)", second[number]), second
    assert first[2] == second[2] == " moved"
    for said in (first[3], second[3]):
        assert "'plain' of group 0 without a gradient on rank 0" in said


def test_ranks_that_would_take_different_steps_say_so(two):
    said = {
        "other lr": ("lr=0.1", "lr=0.2"),
        "other temperature": ("temperature=0.0099", "temperature=0.0199"),
        "other scheme": ("scheme='BAOAB'", "scheme='ABO'"),
        "other maximize": ("maximize=False", "maximize=True"),
        "other seed": ("seed=0", "seed=7"),
        "recorded on one rank": ("with recorded temperatures", "without recorded temperatures"),
        "synchronize on one rank": ("synchronize()", "step()"),
    }
    for text in ("BAOAB-free", "BACDEDCAB-circle", "BAOAB-sphere", "BAOAB-orthogonal"):
        said[f"{text} without a gradient"] = tuple(f"'up' of group 0 {way} a gradient" for way in ("with", "without"))
    for *_, found in two:
        for name, (first, second) in said.items():
            assert re.search(rf"{re.escape(first)}\S* on rank 0", found[name]), found[name]
            assert re.search(rf"{re.escape(second)}\S* on rank 1", found[name]), found[name]
        assert found["different steps changed nothing"]


def test_weights_that_one_rank_cannot_project_are_an_error_on_all(two):
    first, second = (found for *_, found in two)
    assert second["a row that is zero"].startswith("ConstraintError: Sphere on 'row': a row is zero")
    assert first["a row that is zero"].startswith("ConstraintError: rank 1 could not go on, but other weights were")
    for found in (first, second):
        assert found["others were projected"]
        assert "rank-deficient" in found["a matrix of zeros"]


# ── the whole table ──────────────────────────────────────────────────────────────────────────────

PLACEMENTS = {2: ["rows", "columns", "replicated", "mixed"]}
PLACEMENTS[4] = [*PLACEMENTS[2], "hybrid", "both", "two meshes"]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def whole_table(request):
    return request.param, ranks.run(request.param, runs.table, CASES)


@distributed
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_run_is_that_of_one_process(whole_table, case):
    world, found = whole_table
    for name in PLACEMENTS[world]:
        assert_same_run([tables[f"{case} {name}"] for tables in found], case, is_exact(case))


@distributed
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_half_and_double_precision():
    cases = [Case("BAOAB", "circle"), Case("BAOAB", "sphere"), Case("BAOAB", "orthogonal")]
    for dtype in (torch.bfloat16, torch.float64):
        for found in ranks.run(2, in_dtype, cases, dtype):
            for case in cases:
                whole = runs.run(case, dtype=dtype)
                for name in ("rows", "columns"):
                    for key, value in whole.items():
                        limit = 1e-6 if key.endswith(SUMMED) else 1e-12
                        limit = 1e-2 if dtype == torch.bfloat16 and case.space != "circle" else limit
                        torch.testing.assert_close(found[f"{case} {name}"][key], value, rtol=limit, atol=limit)


@distributed
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_steps_do_not_depend_on_the_placement():
    cases = [Case("BAOAB", "free"), Case("BAOAB", "circle")]
    for found in ranks.run(2, compiled, cases):
        for case in cases:
            whole = runs.run(case, fuse=True)
            for name in ("rows", "columns"):
                for key, value in whole.items():
                    torch.testing.assert_close(found[f"{case} {name}"][key], value, rtol=1e-6, atol=1e-6)


def in_dtype(cases, dtype):
    return runs.table(cases, ["rows", "columns"], dtype=dtype)


def compiled(cases):
    return runs.table(cases, ["rows", "columns"], fuse=True)


# ── what is refused, edits, networks, checkpoints ────────────────────────────────────────────────

REFUSALS = {
    "partial": "terms of a sum",
    "order": "ranks were given different groups",
    "order of plain groups": "ranks were given different groups: group 0 of 1 parameter",
    "plain weights on one rank": "Circle.* the weights hold NaN",
    "plain weights on one rank, behind": "Circle.* the weights hold NaN",
    "constraint on one rank": "ranks were given different groups.*Circle",
    "bad number on one rank": "friction.*must be at least 0",
    "zero row": "a row is zero",
    "dtensor radius": "the radius is a DTensor",
    "descending ranks": "in this order; torch cuts in ascending order",
    "copies on descending ranks": "^$",
    "no seed": "no seed",
    "seeds": "seeds of several replicas",
    "multirate": "MultirateLangevin does not take DTensors",
    "meta": "on the meta device: materialise",
    "offloaded": "CPUOffloadPolicy",
    "plain radii of another shape": "does not broadcast",
    "two meshes": "2 different meshes",
    "a step along two dimensions": "NonFiniteGradientError",
    "constrain along two dimensions": "'first': the weights hold NaN",
}
FOUR = {"two meshes", "a step along two dimensions", "constrain along two dimensions"}  # on four ranks only


@distributed
@pytest.mark.parametrize("world", [2, 4])
def test_bad_input_is_refused_on_all_ranks(world):
    for found in ranks.run(world, scenarios.refusals):
        assert found.pop("unchanged")
        assert set(found) == set(REFUSALS) - (FOUR if world == 2 else set())
        for name, text in found.items():
            assert re.search(REFUSALS[name], text), (name, text)


@distributed
@pytest.mark.parametrize("world", [2, 4])
def test_edits_are_taken_up_as_those_of_whole_weights(world):
    for found in ranks.run(world, scenarios.edits):
        assert max(found.values()) < 1e-5, found  # rounding; 4e-16 in double precision


@distributed
@pytest.mark.parametrize("world", [2, 4])
def test_networks_train_as_on_one_process(world):
    for found in ranks.run(world, scenarios.networks):
        assert found.pop("fsdp") == 0.0
        assert found.pop("bf16 weights") < 2e-2
        assert found.pop("mixed precision") < 2e-2
        assert max(found.values()) < 2e-6, found


def each(function, folder):
    return {space: function(space, folder) for space in checkpoints.SPACES}


@distributed
def test_checkpoints_of_four_ranks_go_on_with_two_and_one(tmp_path):
    """Written in parts, and whole by rank 0."""
    saved = ranks.run(4, each, checkpoints.save, str(tmp_path))
    for world in (2, 1):
        for load in (checkpoints.load, checkpoints.load_full):
            for found in ranks.run(world, each, load, str(tmp_path)):
                for space in checkpoints.SPACES:
                    for when, limit in (("saved", 0.0), ("end", 0.0 if space != "matrix" else 2e-6)):
                        ours, theirs = found[space][when], saved[0][space][when]
                        torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)
    for space in checkpoints.SPACES:
        limit = 0.0 if space in checkpoints.EXACT else 2e-6
        torch.testing.assert_close(saved[0][space], checkpoints.alone(space), rtol=limit, atol=limit)


def exchanged():
    return {space: checkpoints.exchanged(space) for space in checkpoints.SPACES}


@distributed
def test_a_state_loads_where_weights_are_placed_in_another_way():
    for found in ranks.run(2, exchanged):
        for space, ends in found.items():
            assert max(ends.values()) <= 1e-5, (space, ends)
