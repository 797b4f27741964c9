"""Langevin words on slow scales: cut programs, the oracle's steps, constraints on either part."""

import copy
import math

import numpy as np
import pytest
import torch

from holonom import Langevin
from holonom.constraints import Circle, Orthogonal, Sphere
from holonom.multirate import Multirate, MultirateLangevin
from holonom.multirate.spread import spread
from holonom.scheme import compile_word
from tests import manifold_oracle, multirate_oracle, oracle
from tests.multirate_problem import agree, gradient, loss, parameters, train, values

from .harness import array, close, parameter, slope

H, GAMMA, TAU = 0.1, 0.7, 0.3
PROGRAMS = {
    ("OBA", 3): "OBA(1/3) A(1/3) A(1/3)",
    ("BAOAB", 5): "BA(1/5) A(1/5) A(1/10)OA(1/10) A(1/5) A(1/5)",
    ("BAOAB", 2): "BA(1/2)O A(1/2)",
    ("ABO", 2): "BOA(1/2) A(1/2)",
    ("BAO", 2): "BA(1/2) A(1/2)O",
    ("BAAOAAB", 2): "BA(1/4)A(1/4)O A(1/4)A(1/4)",
    ("BACDEDCAB", 3): "BA(1/3) A(1/6)CDEDCA(1/6) A(1/3)",
    ("BAOAB", 1): "BA(1/2)OA(1/2)",
}


@pytest.mark.parametrize(("word", "parts"), PROGRAMS, ids=str)
def test_a_word_is_cut_at_equal_shares_of_its_drift(word, parts):
    def show(op):
        return f"A(1/{1 / op.head:.0f})" if op.letter == "A" else op.letter

    cut = spread(compile_word(word).program, parts)
    assert " ".join("".join(map(show, part)) for part in cut) == PROGRAMS[word, parts]
    whole = compile_word(word).program
    for letter in "ABOCDE":
        for share in ("head", "tail"):
            in_one, in_parts = (
                sum(getattr(op, share) for op in program if op.letter == letter) for program in (whole, sum(cut, ()))
            )
            assert in_parts == pytest.approx(in_one, abs=1e-15)


def groups(params, every, **options):
    return [{"params": [p], "every": k, **options} for p, k in zip(params, every, strict=True)]


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("word", ["BAOAB", "OBA", "BACDEDCAB", "L"])
def test_with_period_one_it_is_langevin_bit_for_bit(word, drift):
    mine, theirs = parameters(), parameters()
    options = {"scheme": word, "friction": GAMMA, "temperature": TAU, "seed": 4}
    opt = MultirateLangevin(groups(mine, (1, 1, 1)), H, drift=drift, **options)
    other = Langevin([{"params": [p]} for p in theirs], H, **options)
    for batch, _ in enumerate(train(opt, mine, 5)):
        other.zero_grad()
        loss(theirs, batch).backward()
        other.step()
        assert all(torch.equal(p, q) for p, q in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("drift", [True, False])
def test_oba_without_noise_is_multirate_sgd(drift):
    """With v = −p/H, H = k·h: μ = e^{−γH} and SGD's step is kh² (Algorithm 5.1), the same for every part."""
    every = (6, 2, 1)
    mine, theirs = parameters(), parameters()
    opt = MultirateLangevin(groups(mine, every), H, scheme="OBA", drift=drift)
    sgd = Multirate(groups(theirs, every), 1.0, drift=drift)
    for k, own, other in zip(every, opt.param_groups, sgd.param_groups, strict=True):
        own["friction"] = GAMMA
        other["lr"], other["momentum"] = k * H**2, math.exp(-GAMMA * k * H)
    agree(train(opt, mine, 18), train(sgd, theirs, 18))


def letters(normals):
    return {
        "A": lambda q, p, t, g: (oracle.drift(q, p, t), p),
        "B": lambda q, p, t, g: (q, p - t * g),
        "O": lambda q, p, t, g: (q, oracle.ornstein_uhlenbeck(p, t, GAMMA, TAU, normals.oracle(q.shape))),
    }


@pytest.mark.parametrize(
    ("word", "every", "programs"),
    [
        ("OBA", 3, [[("O", 1), ("B", 1), ("A", 1 / 3)], [("A", 1 / 3)], [("A", 1 / 3)]]),
        ("BAOAB", 2, [[("B", 1), ("A", 1 / 2), ("O", 1)], [("A", 1 / 2)]]),
        (
            "BAOAB",
            5,
            [
                [("B", 1), ("A", 1 / 5)],
                [("A", 1 / 5)],
                [("A", 1 / 10), ("O", 1), ("A", 1 / 10)],
                [("A", 1 / 5)],
                [("A", 1 / 5)],
            ],
        ),
    ],
    ids=str,
)
def test_a_slow_word_with_noise(normals, word, every, programs):
    """A fast part beside it keeps the clock; BAOAB's first kick is half of one."""
    q, fast = parameter([0.3, -0.2, 0.5]), parameter([0.0])
    opt = MultirateLangevin(
        [{"params": [q], "every": every}, {"params": [fast]}],
        H,
        scheme=word,
        friction=GAMMA,
        temperature=TAU,
    )
    opt.param_groups[1]["temperature"] = 0.0
    start = array(q)
    first = -every * H / 2 * slope(start) if word == "BAOAB" else 0.0  # the half kick that is not owed yet
    run = multirate_oracle.multirate_langevin(start, -first, slope, H, every, letters(normals), programs, 3 * every)
    for wanted, _ in run:
        take_gradients(opt, {q: slope, fast: lambda x: x})
        opt.step()
        close(array(q), wanted)


def take_gradients(opt, slopes):
    """Set them by hand, as a backward pass inside due() would."""
    with opt.due():
        for p, gradient_of in slopes.items():
            if p.requires_grad:
                p.grad = torch.from_numpy(np.array(gradient_of(array(p))))


def test_without_drift_the_whole_word_acts_at_its_turn(normals):
    q, fast = parameter([0.3, -0.2, 0.5]), parameter([0.0])
    slow = {"params": [q], "every": 3, "drift": False}
    opt = MultirateLangevin([slow, {"params": [fast], "scheme": "L"}], H, friction=GAMMA, temperature=TAU)
    opt.param_groups[1]["temperature"] = 0.0
    theta, p = array(q), np.zeros(3)
    for t in range(9):
        take_gradients(opt, {q: slope, fast: lambda x: x})
        opt.step()
        if t % 3 == 0:
            noise = normals.oracle((3,))
            theta, p = oracle.baoab(theta, p, slope, 3 * H, GAMMA, TAU, noise)
        close(array(q), theta)


def test_a_slow_circle_rotates_at_every_step():
    """c-CoLA-ud on the slow part: the word BAB with its rotation in k pieces."""
    radius, every = 0.8, 4
    q, fast = parameter([0.3, -0.2, 0.5]), parameter([0.0])
    slow = {"params": [q], "every": every, "constraint": Circle(radius)}
    opt = MultirateLangevin([slow, {"params": [fast]}], H, scheme="BAB")
    theta = array(q)
    slack = np.sqrt(radius**2 - theta**2)
    p_theta, p_slack = np.zeros(3), np.zeros(3)
    for t in range(3 * every):
        take_gradients(opt, {q: slope, fast: lambda x: x})
        opt.step()
        if t % every == 0:
            time = every * H * (1 if t else 0.5)
            theta, slack, p_theta, p_slack = manifold_oracle.c_cola_ud_b(
                theta, slack, p_theta, p_slack, slope, time, radius
            )
        theta, slack, p_theta, p_slack = manifold_oracle.c_cola_ud_a(theta, slack, p_theta, p_slack, H, radius)
        close(array(q), theta)


@pytest.mark.parametrize("where", ["slow", "fast", "both"])
@pytest.mark.parametrize("space", [Circle(0.8), Sphere(0.9), Orthogonal()], ids=lambda space: type(space).__name__)
def test_constraints_hold_on_either_part_at_every_step(space, where):
    generator = torch.Generator().manual_seed(3)
    slow, fast = (
        torch.nn.Parameter(torch.linalg.qr(torch.randn(4, 3, generator=generator, dtype=torch.float64))[0] / 2)
        for _ in range(2)
    )
    space.land_(slow.data, "slow")
    space.land_(fast.data, "fast")
    parts = [{"params": [slow], "every": 5}, {"params": [fast]}]
    for number, name in enumerate(["slow", "fast"]):
        if where in (name, "both"):
            parts[number]["constraint"] = space
    opt = MultirateLangevin(parts, 0.05, friction=1.0, temperature=0.01)
    target = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    moved = []
    for _ in range(23):
        before = slow.detach().clone()
        with opt.due():
            (slow @ fast.mT - target).square().sum().backward()
        opt.step()
        moved.append(not torch.equal(slow, before))
        assert max(opt.residuals()) < 1e-12
    assert all(moved)


def test_momenta_are_the_textbook_s_after_synchronize_at_the_end_of_a_cycle():
    q, fast = parameter([0.3, -0.2, 0.5]), parameter([0.0])
    opt = MultirateLangevin([{"params": [q], "every": 3}, {"params": [fast]}], H, scheme="BAB")
    theta, p = array(q), np.zeros(3)
    for _ in range(6):
        take_gradients(opt, {q: slope, fast: lambda x: x})
        opt.step()
    for _ in range(2):
        p = p - 3 * H / 2 * slope(theta)
        theta = theta + 3 * H * p
        p = p - 3 * H / 2 * slope(theta)
    take_gradients(opt, {q: slope, fast: lambda x: x})
    opt.synchronize()
    close(array(q), theta)
    close(array(opt.state[q]["momentum"]), p)


def test_a_step_of_no_time_changes_nothing():
    params = parameters()
    opt = MultirateLangevin(groups(params, (4, 2, 1)), H, temperature=TAU)
    list(train(opt, params, 3))
    before = values(params)
    for group in opt.param_groups:
        group["lr"] = 0.0
    for theta in train(opt, params, 2, first=3):
        assert all(np.array_equal(x, y) for x, y in zip(theta, before, strict=True))


def test_the_force_of_a_slow_part_is_felt_at_its_turn_only():
    """maximize and weight decay belong to the gradient: nothing is added while there is none."""
    params = parameters()
    opt = MultirateLangevin(groups(params, (3, 3, 1)), H, scheme="OBA", friction=0.0, weight_decay=0.2, maximize=True)
    thetas = list(train(opt, params, 3))
    kick = 3 * H * (gradient(values(parameters()), 0)[0] - 0.2 * values(parameters())[0])
    start = values(parameters())[0]
    for number, theta in enumerate(thetas, 1):
        np.testing.assert_allclose(theta[0], start + number * H * kick, rtol=0, atol=1e-14)


def test_loading_after_steps_keeps_the_weights():
    """Of a loosely held manifold, where initial weights would do as well as those that were reached."""
    p = torch.nn.Parameter(torch.linalg.qr(torch.randn(4, 3, generator=torch.manual_seed(0)))[0] + 1e-4)
    with pytest.warns(UserWarning, match="were moved"):
        optimizer = MultirateLangevin([{"params": [p], "every": 1, "constraint": Orthogonal(iterations=8)}], 0.05)
    for _ in range(3):
        with optimizer.due():
            (p * torch.arange(12.0).reshape(4, 3)).sum().backward()
        optimizer.step()
    reached = p.detach().clone()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(p, reached)
