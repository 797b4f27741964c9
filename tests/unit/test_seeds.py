"""Seeds: drawn once where none is given, shared by all groups, kept or replaced when a checkpoint is loaded."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from holonom import Ensemble, Langevin, SimulatedTempering, presets
from holonom.errors import EnsembleError
from holonom.heun import HeunLangevin
from holonom.models import mlp
from holonom.multirate import MultirateLangevin, RandomSubsets
from holonom.sampling import sample

NOISE = {"lr": 0.1, "temperature": 1.0}


def weights(count=1):
    return [nn.Parameter(torch.zeros(3)) for _ in range(count)]


def step(opt, times=1):
    for _ in range(times):
        for group in opt.param_groups:
            for p in group["params"]:
                p.grad = p.detach().clone()
        opt.step()


def end(opt, times=3):
    step(opt, times)
    return torch.cat([p.detach() for group in opt.param_groups for p in group["params"]])


def seeds(opt):
    return [group["seed"] for group in opt.param_groups]


@pytest.fixture
def two_ranks(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *group: 2)


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────


def test_two_optimizers_have_noise_of_their_own():
    one, other = (end(Langevin(weights(), **NOISE)) for _ in range(2))
    assert not torch.equal(one, other)


def test_chains_without_a_seed_are_not_correlated():
    chains = []
    for _ in range(2):
        p = nn.Parameter(torch.zeros(4000))
        chains.append(end(Langevin([p], **NOISE), 20))
    assert abs(torch.corrcoef(torch.stack(chains))[0, 1]) < 0.08


@pytest.mark.parametrize("kind", [Langevin, MultirateLangevin, HeunLangevin])
def test_a_seed_of_torch_repeats_them(kind):
    found = []
    for _ in range(2):
        torch.manual_seed(5)
        found.append([kind(weights(), 0.1).param_groups[0]["seed"] for _ in range(2)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]
    assert all(0 <= seed < 1 << 63 for seed in found[0])


@pytest.mark.parametrize(("options", "draws"), [({}, 1), ({"temperature": 1.0}, 1), ({"seed": 3}, 0)])
def test_one_number_is_drawn_at_construction_and_none_later(options, draws):
    torch.manual_seed(0)
    opt = Langevin([{"params": p} for p in weights(3)], 0.1, **options)
    opt.add_param_group({"params": weights()})
    step(opt)
    copy.deepcopy(opt).load_state_dict(opt.state_dict())
    after = torch.get_rng_state()
    torch.manual_seed(0)
    for _ in range(draws):
        torch.randint(0, (1 << 63) - 1, ())
    assert torch.equal(after, torch.get_rng_state())


def test_all_groups_share_the_number_later_ones_included():
    opt = Langevin([{"params": p} for p in weights(2)], **NOISE)
    opt.add_param_group({"params": weights(), "seed": None})
    opt.add_param_group({"params": weights(), "seed": 4})
    opt.param_groups.append({"params": weights()})
    step(opt)
    drawn = opt.defaults["seed"]
    assert seeds(opt) == [drawn, drawn, drawn, 4, drawn]
    assert [group["seed_given"] for group in opt.param_groups] == [False, False, False, True, False]


def test_ensembles_differ_and_torch_repeats_them():
    def built():
        return Ensemble(lambda: mlp([2, 3, 1]), 4)

    one, other = built(), built()
    assert not torch.isin(one.seeds, other.seeds).any()
    assert len(set(one.seeds.tolist())) == 4
    torch.manual_seed(0)
    again = built()
    torch.manual_seed(0)
    assert torch.equal(built().seeds, again.seeds)
    assert torch.equal(presets.sgld(again).param_groups[0]["seed"], again.seeds)


def test_building_an_ensemble_leaves_all_generators_as_they_were(monkeypatch):
    """A GPU that is not in use yet takes the last seed it was given."""
    torch.manual_seed(5)
    given, state = [], torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", given.append)
    Ensemble(lambda: mlp([2, 3, 1]), 2, seed=0)
    assert given[-1] == 5
    assert torch.equal(torch.get_rng_state(), state)


def test_tempering_and_subsets_draw_their_own():
    opt = Langevin(weights(), **NOISE)
    assert len({SimulatedTempering(opt, [1.0, 2.0]).seed for _ in range(3)}) == 3
    assert len({RandomSubsets(weights(), 0.1).param_groups[0]["seed"] for _ in range(3)}) == 3
    assert SimulatedTempering(opt, [1.0, 2.0], seed=5).seed == 5


# ── what a seed may be ────────────────────────────────────────────────────────────────────────────


def posterior_of(seed):
    data = torch.zeros(8, 2), torch.zeros(8, 1)
    options = {"steps": 4, "burn_in": 2, "chains": 2, "lr": 0.01, "progress": False}
    return sample(nn.Linear(2, 1), lambda out, y: (out - y).square().mean(), data, seed=seed, **options).seed


def reseeded(seed):
    opt = Langevin(weights(), **NOISE)
    opt.reseed_(seed)
    return seeds(opt)[0]


def assigned(seed):
    opt = Langevin(weights(), **NOISE)
    opt.param_groups[0]["seed"] = seed
    step(opt)
    return seeds(opt)[0]


TAKE_SEEDS = {
    "Langevin": lambda seed: seeds(Langevin(weights(), **NOISE, seed=seed))[0],
    "group": lambda seed: seeds(Langevin([{"params": weights(), "seed": seed}], **NOISE))[0],
    "reseed_": reseeded,
    "assigned": assigned,
    "MultirateLangevin": lambda seed: seeds(MultirateLangevin(weights(), 0.1, seed=seed))[0],
    "RandomSubsets": lambda seed: seeds(RandomSubsets(weights(), 0.1, seed=seed))[0],
    "SimulatedTempering": lambda seed: SimulatedTempering(Langevin(weights(), **NOISE), [1.0, 2.0], seed=seed).seed,
    "Ensemble": lambda seed: tuple(Ensemble(lambda: mlp([2, 3, 1]), 2, seed).seeds.tolist()),
    "sample": posterior_of,
}


@pytest.mark.parametrize("take", TAKE_SEEDS.values(), ids=TAKE_SEEDS)
def test_seeds_are_whole_numbers_of_64_bits(take):
    assert len({take(seed) for seed in (0, -1, 1 << 63, 7)}) == 4
    assert take(np.int64(7)) == take(np.int32(7)) == take(7)
    assert take(torch.tensor(7)) == take(7)
    assert take(np.uint64((1 << 63) + 5)) == take((1 << 63) + 5)
    for seed in (True, np.True_, 1.0, float("nan"), "0", torch.tensor(1.0), torch.Generator()):
        with pytest.raises(TypeError, match="seed"):
            take(seed)
    for seed in (1 << 64, -(1 << 63) - 1):  # the noise of another seed
        with pytest.raises(ValueError, match=r"at least -2\*\*63 and less than 2\*\*64"):
            take(seed)


def test_numbers_of_replicas_may_be_numpys():
    assert Ensemble(lambda: mlp([2, 3, 1]), np.int64(2), repeats=np.int32(3)).replicas == 6
    for replicas in (True, 2.0, 0):
        with pytest.raises(EnsembleError, match="replicas must be a whole number of at least 1"):
            Ensemble(lambda: mlp([2, 3, 1]), replicas)


# ── several ranks ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-3},
        {"temperature": 1e-3, "scheme": "L"},
        {"temperature": torch.tensor(0.0)},
        {"scheme": "BACDEDCAB", "temperature": 1e-3},
        {"scheme": "BAFEFAB", "coupling": 0.1, "driving_noise": torch.tensor(0.0)},
    ],
    ids=str,
)
def test_noise_without_a_seed_is_refused_where_ranks_would_differ(options, two_ranks):
    with pytest.raises(ValueError, match=r"no seed.*2 ranks.*seed=0"):
        Langevin(weights(), 0.1, **options)
    Langevin(weights(), 0.1, seed=0, **options)
    with pytest.raises(ValueError, match="no seed"):
        Langevin([{"params": weights(), "seed": 1}, {"params": weights()}], 0.1, **options)


def test_without_noise_ranks_need_no_seed_until_there_is_some(two_ranks):
    opt = Langevin(weights(), 0.1)
    Langevin(weights(), 0.1, scheme="BACDEDCAB", coupling=0.1, driving_noise=0.0)
    step(opt)
    before = [p.detach().clone() for p in opt.param_groups[0]["params"]]
    opt.param_groups[0]["temperature"] = 0.1
    with pytest.raises(ValueError, match=r"group 0.*no seed.*2 ranks"):
        step(opt)
    assert all(torch.equal(p, q) for p, q in zip(opt.param_groups[0]["params"], before, strict=True))
    opt.reseed_(0)
    step(opt)


def test_others_that_draw_are_refused_on_several_ranks(two_ranks):
    opt = Langevin(weights(), 0.1, temperature=1.0, seed=0)
    for build in (
        lambda: Ensemble(lambda: mlp([2, 3, 1]), 2),
        lambda: SimulatedTempering(opt, [1.0, 2.0]),
        lambda: RandomSubsets(weights(), 0.1),
    ):
        with pytest.raises(ValueError, match=r"no seed.*2 ranks"):
            build()


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["copy", "pickle"])
def test_a_run_without_a_seed_resumes_bit_equal_and_so_do_groups_added_later(copied):
    opt = Langevin(weights(), **NOISE)
    step(opt, 2)
    first = copied(opt)
    again = Langevin([nn.Parameter(opt.param_groups[0]["params"][0].detach().clone())], **NOISE)
    again.load_state_dict(opt.state_dict())
    twice = Langevin([nn.Parameter(opt.param_groups[0]["params"][0].detach().clone())], **NOISE)
    twice.load_state_dict(Langevin(weights(), **NOISE).state_dict())
    twice.load_state_dict(opt.state_dict())
    ends = []
    for one in (opt, first, again, twice):
        one.add_param_group({"params": weights()})
        ends.append(end(one))
    for found in ends[1:]:
        assert torch.equal(found, ends[0])


@pytest.mark.parametrize("copied", [False, True])
def test_chains_branch_from_one_burn_in_by_the_seeds_they_are_given(copied):
    burnt = Langevin(weights(), **NOISE)
    step(burnt, 5)
    start, saved = burnt.param_groups[0]["params"][0].detach(), burnt.state_dict()
    ends = []
    for seed in (1, 2):
        chain = Langevin([nn.Parameter(start.clone())], **NOISE, seed=seed)
        chain = copy.deepcopy(chain) if copied else chain
        with pytest.warns(UserWarning, match=rf"group 0: {seed}, the checkpoint's {seeds(burnt)[0]}") as caught:
            chain.load_state_dict(saved)
        assert caught[0].filename == __file__
        assert seeds(chain) == [seed]
        ends.append(end(chain))
    assert not torch.equal(*ends)


def test_the_same_seed_given_again_is_no_reason_to_warn():
    opt = Langevin(weights(), **NOISE, seed=7)
    for given in (7, torch.tensor(7), None):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Langevin(weights(), **NOISE, seed=given).load_state_dict(opt.state_dict())


def test_each_group_keeps_what_it_was_given():
    def build(first):
        return Langevin([{"params": weights(), "seed": first}, {"params": weights()}], **NOISE)

    saved, other = build(1), build(2)
    drawn = seeds(saved)[1]
    with pytest.warns(UserWarning, match=r"\(group 0: 2, the checkpoint's 1\)"):
        other.load_state_dict(saved.state_dict())
    assert seeds(other) == [2, drawn]
    assert other.defaults["seed"] == drawn


def test_a_checkpoint_of_0_1_brings_its_seed():
    opt = Langevin(weights(), **NOISE, seed=0)
    step(opt, 2)
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["seed_given"], group["format"]
    again = Langevin([nn.Parameter(opt.param_groups[0]["params"][0].detach().clone())], **NOISE)
    again.load_state_dict(saved)
    assert seeds(again) == [0]
    assert torch.equal(end(again), end(opt))


def test_reseeding_gives_the_noise_of_a_run_with_that_seed():
    opt, other = Langevin(weights(2), **NOISE, scheme="L"), Langevin(weights(2), **NOISE, scheme="L", seed=9)
    step(opt), step(other)
    opt.reseed_(9)
    for p, q in zip(opt.param_groups[0]["params"], other.param_groups[0]["params"], strict=True):
        p.data.copy_(q)
    opt.add_param_group({"params": weights()})
    other.add_param_group({"params": weights()})
    assert torch.equal(end(opt), end(other))
    with pytest.warns(UserWarning, match="another seed"):
        opt.load_state_dict(Langevin(opt_like(opt), **NOISE, scheme="L").state_dict())
    assert seeds(opt) == [9, 9]


def opt_like(opt):
    return [{"params": [nn.Parameter(p.detach().clone()) for p in group["params"]]} for group in opt.param_groups]


def test_reseeding_with_what_does_not_fit_changes_nothing():
    p = nn.Parameter(torch.zeros(3, 2))
    opt = Langevin([p], 0.1, scheme="BACDEDCAB", temperature=1.0, seed=1)
    for seed, said in [
        (1.5, "whole number"),
        (torch.arange(4), "4 seeds need parameters"),
        (torch.arange(3), "thermostat for every replica"),
        (None, "whole number"),
    ]:
        with pytest.raises((TypeError, ValueError), match=said):
            opt.reseed_(seed)
        assert seeds(opt) == [1]
    replicas = Langevin([nn.Parameter(torch.zeros(3, 2))], **NOISE, seed=torch.arange(3))
    replicas.reseed_(torch.arange(3) + 5)
    assert seeds(replicas)[0].tolist() == [5, 6, 7]


@pytest.mark.parametrize("given", [None, 8])
def test_an_ensemble_that_drew_its_seeds_takes_the_checkpoints(given):
    def build():
        return presets.sgld(Ensemble(lambda: mlp([2, 3, 1]), 2, given))

    saved, other = build(), build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.load_state_dict(saved.state_dict())
    assert torch.equal(seeds(other)[0], seeds(saved)[0])


def test_subsets_and_tempering_keep_what_was_given_and_take_what_was_not():
    saved = RandomSubsets(weights(), 0.1)
    fresh, given = RandomSubsets(weights(), 0.1), RandomSubsets(weights(), 0.1, seed=4)
    fresh.load_state_dict(saved.state_dict())
    assert seeds(fresh) == seeds(saved)
    with pytest.warns(UserWarning, match="another seed"):
        given.load_state_dict(saved.state_dict())
    assert seeds(given) == [4]

    opt, ladder = Langevin(weights(), **NOISE), [1.0, 2.0]
    tempering = SimulatedTempering(opt, ladder)
    again = SimulatedTempering(opt, ladder)
    again.load_state_dict(tempering.state_dict())
    assert again.seed == tempering.seed
    again.load_state_dict({k: v for k, v in tempering.state_dict().items() if k != "seed"})
    assert again.seed == 0, "0.1.0 wrote none and had 0"
    given = SimulatedTempering(opt, ladder, seed=4)
    with pytest.warns(UserWarning, match="4, which was given here, stays"):
        given.load_state_dict(tempering.state_dict())
    assert given.seed == 4


def test_seeds_pass_through_a_file_that_holds_plain_data_only():
    opt = Langevin(weights(), **NOISE)
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    again = Langevin(weights(), **NOISE)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    assert seeds(again) == seeds(opt)
