"""The recorder keeps draws and tells a mixed chain from one that is not."""

import numpy as np
import pytest
import torch

from holonom import Recorder


def autoregressive(correlation: float, draws: int, chains: int = 1, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = np.zeros((draws, chains))
    for i in range(1, draws):
        x[i] = correlation * x[i - 1] + np.sqrt(1 - correlation**2) * generator.standard_normal(chains)
    return x


def test_every_and_warmup() -> None:
    recorder = Recorder(every=3, warmup=4)
    for i in range(20):
        recorder(value=float(i))
    assert recorder.draws("value").tolist() == [[4.0, 7.0, 10.0, 13.0, 16.0, 19.0]]


def test_iat_of_an_autoregressive_chain() -> None:
    """ρ^s correlations have IAT (1 + ρ)/(1 − ρ) (1.67); ρ = 0.8 gives 9."""
    recorder = Recorder()
    for value in autoregressive(0.8, 20_000)[:, 0]:
        recorder(x=torch.tensor(value))
    (row,) = recorder.diagnose()
    assert row.iat == pytest.approx(9.0, rel=0.2)
    assert row.ess == pytest.approx(20_000 / 9, rel=0.25)
    assert row.rhat < 1.01
    verdict = recorder.verdict()
    assert verdict
    assert str(verdict).startswith("mixed")


def test_chains_that_disagree_have_not_mixed() -> None:
    recorder = Recorder(chains=4)
    offset = torch.tensor([0.0, 0.0, 0.0, 3.0])
    for row in autoregressive(0.1, 1000, chains=4):
        recorder(x=torch.tensor(row) + offset, fine=torch.tensor(row))
    verdict = recorder.verdict()
    assert not verdict
    assert "1 of 2 quantities; worst x" in verdict.text
    assert recorder.draws("x").shape == (4, 1000)


def test_a_drifting_chain_has_not_mixed() -> None:
    recorder = Recorder()
    for i, value in enumerate(autoregressive(0.1, 2000)[:, 0]):
        recorder(x=value + i / 500)
    assert not recorder.verdict()


def test_the_worst_component_is_reported() -> None:
    recorder = Recorder()
    fast, slow = autoregressive(0.0, 4000)[:, 0], autoregressive(0.99, 4000, seed=1)[:, 0]
    for a, b in zip(fast, slow, strict=True):
        recorder(x=torch.tensor([a, b]))
    (row,) = recorder.diagnose()
    assert row.components == 2
    assert row.ess < 200


def test_bad_use() -> None:
    with pytest.raises(ValueError, match="every and chains"):
        Recorder(every=0)
    recorder = Recorder(chains=2)
    with pytest.raises(ValueError, match="must run over 2 chains"):
        recorder(x=torch.zeros(3))
    recorder = Recorder()
    recorder(x=1.0)
    with pytest.raises(ValueError, match="same quantities"):
        recorder(y=1.0)
    with pytest.raises(KeyError, match="was not recorded"):
        recorder.draws("z")
    with pytest.raises(ValueError, match="too few"):
        recorder.verdict()


@pytest.mark.parametrize(("stuck", "said"), [(float("nan"), "is not a number"), (0.5, "never moved")])
def test_a_lost_component_beside_a_moving_one_has_not_mixed(stuck: float, said: str) -> None:
    recorder = Recorder()
    for value in np.random.default_rng(0).standard_normal(2000):
        recorder(weights=torch.tensor([stuck, value]))
    assert not recorder.verdict()
    assert str(recorder.verdict()) == f"not mixed: a component of weights {said}."


def test_a_quantity_without_components_is_no_obstacle() -> None:
    recorder = Recorder()
    for value in np.random.default_rng(0).standard_normal(2000):
        recorder(weight=float(value), nothing=torch.zeros(0))
    assert recorder.verdict()


def test_chains_that_are_copies_are_refused() -> None:
    """One chain counted four times would have R̂ = 1 and four times its draws."""
    one = autoregressive(0.1, 1000)
    recorder = Recorder(chains=4)
    for row in np.repeat(one, 4, axis=1):
        recorder(x=torch.tensor(row), step=torch.arange(4.0) * 0)
    for judge in (recorder.verdict, recorder.diagnose):
        with pytest.raises(
            ValueError, match=r"chains 0 and 1 are copies: equal in every draw of step, x.*ensemble.seeds"
        ):
            judge()


def test_chains_may_agree_in_some_quantities_and_in_standing_still() -> None:
    rows = autoregressive(0.1, 1000, chains=2)
    recorder, still = Recorder(chains=2), Recorder(chains=2)
    for row in rows:
        recorder(x=torch.tensor(row), shared=torch.full((2,), row[0]))
        still(x=torch.ones(2))
    assert len(recorder.diagnose()) == 2
    assert "never moved" in str(still.verdict())


def test_advice_leaves_the_temperature_of_the_target_alone() -> None:
    recorder = Recorder(chains=2)
    for row in autoregressive(0.1, 500, chains=2):
        recorder(x=torch.tensor(row) + torch.tensor([0.0, 5.0]))
    text = str(recorder.verdict())
    assert "raise the temperature" not in text
    assert "SimulatedTempering" in text
    assert "keeps the law of its lowest temperature" in text
