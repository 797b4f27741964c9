"""Orthogonal weights in few digits: how far they stay from the manifold, and how well they find their way."""

import io

import pytest
import torch

from holonom import Langevin
from holonom.constraints import Orthogonal, orthogonal


def weight(shape, seed=0, dtype=torch.float32):
    q = torch.empty(shape, dtype=torch.float64)
    torch.nn.init.orthogonal_(q, generator=torch.Generator().manual_seed(seed))
    return torch.nn.Parameter(q.to(dtype))


def gradient(shape, size, seed=1):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return g * (size / g.norm())


def violation(q):
    q = q.detach().double()
    q = q if q.shape[0] >= q.shape[1] else q.mT
    return float((q.mT @ q - torch.eye(q.shape[1], dtype=q.dtype)).abs().max())


@pytest.mark.parametrize("shape", [(5, 5), (20, 60), (60, 20), (200, 200)], ids=str)
@pytest.mark.parametrize(
    ("word", "lr"),
    [("L", 1e-4), ("L", 1e-3), ("L", 0.05), ("OBA", 0.01), ("OBA", 0.1), ("BAOAB", 0.03), ("BAAOAAB", 0.03)],
)
def test_residuals_stay_within_a_millionth(word, lr, shape):
    """In every regime: no correction, one, several iterations."""
    params = [weight(shape, seed) for seed in range(2)]
    opt = Langevin(params, lr, scheme=word, constraint=Orthogonal())
    gradients = [gradient(shape, 5 if min(shape) > 10 else 1, seed) for seed in range(2)]
    for _ in range(50):
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        opt.step()
        assert max(map(violation, params)) <= 1e-6
        assert word == "L" or opt.cotangencies()[0] <= 3e-6


@pytest.mark.parametrize("shape", [(5, 5), (300, 300), (260, 200)], ids=str)
def test_the_way_is_that_of_double_precision(shape):
    """Free motion, where nothing pulls back what rounding pushed off."""
    ways = []
    for dtype in (torch.float64, torch.float32):
        q = weight(shape, dtype=dtype)
        opt = Langevin([q], 0.01, scheme="BAB", friction=0.0, constraint=Orthogonal())
        state = opt.state[q]
        momentum = state["spin" if "spin" in state else "chord"]
        momentum.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
        opt.project_()
        start, length = q.detach().double().clone(), momentum.double().norm()
        momentum.mul_(0.1 * shape[1] ** 0.5 / length)
        for _ in range(100):
            q.grad = torch.zeros_like(q)
            opt.step()
        opt.synchronize()
        ways.append((q.detach().double() - start, momentum.double()))
    (exact, spin), (way, other) = ways
    assert float((way - exact).norm() / exact.norm()) < 2e-5
    assert float((other - spin).norm() / spin.norm()) < 5e-6


@pytest.mark.parametrize("shape", [(150, 40), (40, 300), (300, 300)], ids=str)
@pytest.mark.parametrize(("word", "lr"), [("L", 1e-4), ("OBA", 1e-3)])
def test_short_steps_keep_weights_right_without_polishing(word, lr, shape, monkeypatch):
    """Each removes what those before it left; a long one is not followed by so much."""
    polishes = []
    exact = orthogonal.relative_gram_error
    monkeypatch.setattr(orthogonal, "relative_gram_error", lambda q, c: polishes.append(1) or exact(q, c))
    q = weight(shape)
    opt = Langevin([q], lr, scheme=word, friction=1.0, constraint=Orthogonal())
    turning = word == "OBA" and shape[0] == shape[1]  # which has no short steps
    worst = 0.0
    for n in range(600 if q.numel() < 50_000 else 100):
        q.grad = gradient(shape, 5, seed=n % 4)
        opt.step()
        worst = max(worst, violation(q)) if n % 10 == 0 else worst
    assert worst <= 4e-7
    assert bool(polishes) == turning
    opt.param_groups[0]["lr"] = 0.1
    for _ in range(13):
        opt.step()
    assert polishes


@pytest.mark.parametrize("word", ["L", "OBA"])
@pytest.mark.parametrize("shape", [(20, 5), (300, 300)], ids=str)
def test_weights_at_a_minimum_stay_there(shape, word):
    """Where the gradient is large and points off the manifold, a rounding that is always the same would walk."""
    rows, columns = shape
    basis = torch.linalg.qr(torch.randn(rows, rows, generator=torch.Generator().manual_seed(3)).double())[0]
    heights = torch.cat([torch.linspace(-1, -0.5, columns), torch.linspace(0, 1, rows - columns)]).double()
    form = (basis * heights) @ basis.mT  # its lowest eigenvectors minimise ½tr QᵀAQ
    q = torch.nn.Parameter(basis[:, :columns].float())
    start = q.detach().double()
    opt = Langevin([q], 1e-4 if word == "L" else 1e-2, scheme=word, friction=1.0, constraint=Orthogonal())
    for _ in range(1500 if rows < 100 else 100):
        q.grad = form.float() @ q.detach()
        opt.step()
    assert float((q.detach().double() - start).abs().max()) < 5e-6


def test_short_steps_are_not_lost_in_rounding():
    """A small product added in one call is rounded after every term, and steps this short would vanish."""
    exact, single = weight((9, 9), dtype=torch.float64), weight((9, 9))
    for p in (exact, single):
        opt = Langevin([p], 1e-4, scheme="L", constraint=Orthogonal())
        start = p.detach().clone()
        for _ in range(200):
            p.grad = gradient((9, 9), 9).to(p.dtype)
            opt.step()
    moved = exact.detach() - start.double()
    assert float((single.detach().double() - exact.detach()).norm() / moved.norm()) < 1e-4


@pytest.mark.parametrize("shape", [(8, 8), (30, 30), (60, 20)], ids=str)
@pytest.mark.parametrize(("word", "lr"), [("L", 0.01), ("OBA", 0.03)])
def test_half_precision_never_leaves_its_manifold(word, lr, shape):
    q = weight(shape, dtype=torch.bfloat16)
    opt = Langevin([q], lr, scheme=word, constraint=Orthogonal())
    for seed in range(100):
        q.grad = gradient(shape, 3, seed).bfloat16()
        opt.step()
        opt.check()


@pytest.mark.parametrize("every", [2, 5, 16])
def test_weights_that_move_now_and_then_are_polished_too(every):
    q = weight((20, 20))
    opt = Langevin([q], 1e-3, scheme="L", constraint=Orthogonal())
    turn = torch.randn(20, 20, generator=torch.Generator().manual_seed(3))
    turn = (turn - turn.mT) * (0.1 / (turn - turn.mT).norm(dim=-1).max())
    for step in range(600 * every):
        q.grad = q.detach() @ turn if step % every == 1 else None
        if step % every == 1:
            opt.step()
        else:
            opt.param_groups[0]["step"] += 1  # as a group whose other weights move
    assert violation(q) <= 2e-6


@pytest.mark.parametrize("word", ["L", "BAB", "BAOAB", "BAAOAAB"])
def test_a_tolerance_is_kept_by_every_word_and_a_checkpoint_goes_on(word):
    tolerance = 1e-3
    q = weight((20, 20))
    opt = Langevin([q], 0.02, scheme=word, constraint=Orthogonal(tolerance=tolerance))
    for seed in range(40):
        q.grad = gradient((20, 20), 0.4, seed)
        opt.step()
        assert violation(q) <= tolerance
    buffer = io.BytesIO()
    torch.save([q.detach(), opt.state_dict()], buffer)
    buffer.seek(0)
    saved, state = torch.load(buffer, weights_only=True)
    other = weight((20, 20))
    resumed = Langevin([other], 0.02, scheme=word, constraint=Orthogonal(tolerance=tolerance))
    resumed.load_state_dict(state)
    with torch.no_grad():
        other.copy_(saved)
    for p, optimizer in ((q, opt), (other, resumed)):
        p.grad = gradient((20, 20), 0.4, 99)
        optimizer.step()
    assert torch.equal(q, other)


@pytest.mark.parametrize("word", ["L", "OBA", "BAOAB"])
@pytest.mark.parametrize("shape", [(60, 10), (10, 60), (10, 10), (3, 20, 8)], ids=str)
@pytest.mark.parametrize("rate", [0.5, -0.5])
def test_a_force_across_the_manifold_does_not_push_weights_off(rate, shape, word):
    """Along QS, S symmetric, errors of QᵀQ = I would grow at every step. Random gradients have little of that."""
    space = Orthogonal("batch" if len(shape) > 2 else None)
    q = torch.nn.Parameter(torch.empty(shape))
    for matrix in q.detach().reshape(-1, *shape[-2:]):
        torch.nn.init.orthogonal_(matrix, generator=torch.Generator().manual_seed(0))
    lr = abs(rate) if word == "L" else abs(rate) ** 0.5
    opt = Langevin([q], lr, scheme=word, friction=1.0, constraint=space)
    stiffness = torch.linspace(1, 1.1, shape[-2])[:, None]
    for _ in range(100):
        q.grad = stiffness * q.detach() * (1 if rate > 0 else -1)
        opt.step()
        assert opt.residuals()[0] <= 1e-6
        assert word == "L" or opt.cotangencies()[0] <= 1e-5


@pytest.mark.parametrize("shape", [(60, 20), (7, 33)], ids=str)
def test_a_rate_that_nearly_vanishes_leaves_the_momentum(shape):
    """Weights are put right by roundings of 1, which a drift must not divide by its h and keep as momentum."""
    warmth = []
    for dtype in (torch.float64, torch.float32):
        q = weight(shape, dtype=dtype)
        opt = Langevin([q], 0.05, constraint=Orthogonal())
        for lr in (*[0.05] * 20, 1e-3, 1e-5, 1e-9, 1e-9, 1e-5, *[0.05] * 20):
            opt.param_groups[0]["lr"] = lr
            q.grad = gradient(shape, 1, 0).to(dtype)
            opt.step()
            assert float(opt.state[q]["chord"].norm()) < 3
        warmth.append(opt.temperatures()[0])
    assert warmth[1] == pytest.approx(warmth[0], rel=1e-4)


@pytest.mark.parametrize("shape", [(60, 20), (7, 33)], ids=str)
def test_roundings_of_the_gram_matrix_do_not_turn_the_weights(shape):
    q = weight(shape)
    opt = Langevin([q], 1e-4, scheme="BAB", friction=0.0, constraint=Orthogonal())
    chord = opt.state[q]["chord"].normal_(generator=torch.Generator().manual_seed(2))
    opt.project_()
    chord.mul_(1e-3 / chord.norm())
    before = chord.clone()
    for _ in range(300):
        q.grad = torch.zeros_like(q)
        opt.step()
    opt.synchronize()
    assert float((chord - before).norm() / before.norm()) < 5e-5


def test_a_replica_at_nearly_no_rate_keeps_its_momentum():
    """What one replica's step explains may be garbage to another whose h is a millionth of it."""
    q = torch.nn.Parameter(torch.stack([weight((12, 4), seed).detach() for seed in range(2)]))
    rates = torch.tensor([1e-3, 1e-12])
    opt = Langevin([q], rates, scheme="BAB", friction=0.0, constraint=Orthogonal(view="batch"))
    chord = opt.state[q]["chord"].normal_(generator=torch.Generator().manual_seed(2))
    opt.project_()
    before = chord[1].clone()
    for _ in range(3):
        q.grad = torch.zeros_like(q)
        opt.step()
    assert float((chord[1] - before).norm() / before.norm()) < 1e-6


def test_half_precision_does_not_heat():
    """Weights are rounded behind every step, and what puts them right is not normal any more when it is."""
    q = torch.nn.Parameter(weight((20, 1)).detach().half())
    opt = Langevin([q], 3e-3, scheme="BAB", friction=0.0, constraint=Orthogonal())
    chord = opt.state[q]["chord"].normal_(generator=torch.Generator().manual_seed(2))
    opt.project_()
    chord.mul_(0.1 / chord.norm())
    before = opt.temperatures()[0]
    for _ in range(500):
        q.grad = torch.zeros_like(q)
        opt.step()
    assert opt.temperatures()[0] == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("word", ["L", "OBA"])
@pytest.mark.parametrize("shape", [(60, 20), (256, 256)], ids=str)
def test_weights_without_a_force_stand_still(word, shape):
    q = weight(shape)
    opt = Langevin([q], 0.01, scheme=word, constraint=Orthogonal())
    for n in range(53):
        q.grad = torch.zeros_like(q)
        opt.step()
        if n == 13:  # polished twice
            before = q.detach().clone()
    assert float((q.detach() - before).abs().max()) < 2e-8
