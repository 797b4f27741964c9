"""The oracle agrees with itself: each fact ties two independent transcriptions, or a formula to its invariant."""

import numpy as np
import pytest

from tests import manifold_oracle, oracle

H, FRICTION, TEMPERATURE = 0.1, 0.7, 0.3


def anharmonic(q):
    """∇ of Σ q⁴/4 + q²/2 + a coupling of neighbours, for arrays of any shape."""
    return q**3 + q + 0.3 * np.roll(q, 1, axis=0) + 0.3 * np.roll(q, -1, axis=0)


@pytest.fixture
def rng():
    return np.random.default_rng(20210718)


def close(actual, expected, tolerance=1e-13):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("friction", [0.0, FRICTION, np.inf])
@pytest.mark.parametrize("name", ["baoab", "oba", "abo"])
def test_words_equal_explicit_formulas(rng, name, friction):
    q, p, r = rng.standard_normal((3, 5))
    word = oracle.run_word(name.upper(), q, p, anharmonic, H, friction, TEMPERATURE, [r])
    explicit = getattr(oracle, name)(q, p, anharmonic, H, friction, TEMPERATURE, r)
    close(word[:2], explicit)


def test_adaptive_langevin_equals_its_word_and_adlala_without_a_second_part(rng):
    q, p, r, s = rng.standard_normal((4, 5))
    explicit = oracle.adaptive_langevin(q, p, -0.4, anharmonic, H, TEMPERATURE, 0.2, 0.5, (r, s))
    word = oracle.run_word("BACDEDCAB", q, p, anharmonic, H, 0.0, TEMPERATURE, [r, s], -0.4, 0.2, 0.5)
    whole = oracle.adlala(q, p, -0.4, anharmonic, H, 5, TEMPERATURE, 0.2, 0.5, 1.0, 1.0, (r, s), np.zeros(0))
    for other in (word, whole):
        for x, y in zip(explicit, other, strict=True):
            close(x, y)


def test_adlala_without_a_first_part_is_baoab_and_uncoupled_parts_are_the_two_methods(rng):
    q, p, r, s = rng.standard_normal((4, 6))
    first = oracle.adaptive_langevin(q[:4], p[:4], 0.2, np.sin, H, 0.1, 0.3, 0.5, (r[:4], s[:4]))
    second = oracle.baoab(q[4:], p[4:], np.sin, H, FRICTION, TEMPERATURE, r[4:])
    both = oracle.adlala(q, p, 0.2, np.sin, H, 4, 0.1, 0.3, 0.5, FRICTION, TEMPERATURE, (r[:4], s[:4]), r[4:])
    close(both[0], np.concatenate([first[0], second[0]]))
    close(both[1], np.concatenate([first[1], second[1]]))
    close(both[2], first[2])


def test_cold_oba_is_sgd_with_momentum(rng):
    q, p = rng.standard_normal((2, 5))
    x, v = q, -p / H
    for _ in range(20):
        q, p = oracle.oba(q, p, anharmonic, H, FRICTION, 0.0, np.zeros(5))
        x, v = oracle.sgd_momentum(x, v, anharmonic, lr=H**2, momentum=np.exp(-FRICTION * H))
    close(x, q)
    close(-H * v, p)


def test_baoab_at_infinite_friction_is_the_limit_scheme(rng):
    q, r, previous = rng.standard_normal((3, 5))
    p = np.sqrt(TEMPERATURE) * previous - H / 2 * anharmonic(q)  # what the last step left
    full, _ = oracle.baoab(q, p, anharmonic, H, np.inf, TEMPERATURE, r)
    close(oracle.baoab_limit(q, anharmonic, H**2 / 2, TEMPERATURE, r, previous), full)


def test_lol_without_friction_is_dhsgd_from_its_second_step(rng):
    q, p = rng.standard_normal((2, 5))
    split, silent = 3, np.zeros(5)
    p[split:] = 0.0
    step, _ = oracle.lol(q, p, anharmonic, H, split, 0.0, 0.0, silent)
    close(step[split:], q[split:] - H**2 / 4 * anharmonic(q)[split:])  # from p⁽²⁾ = 0: half as far
    close(step[:split], oracle.dhsgd(q, p[:split], anharmonic, H, split)[0][:split])
    p[split:] = -H / 2 * anharmonic(q)[split:]
    x, p1 = q, p[:split]
    for _ in range(10):
        q, p = oracle.lol(q, p, anharmonic, H, split, 0.0, 0.0, silent)
        x, p1 = oracle.dhsgd(x, p1, anharmonic, H, split)
    close(x, q)
    close(p1, p[:split])


def test_merged_thermostat_letter_is_an_ornstein_uhlenbeck_step(rng):
    p, r = rng.standard_normal((2, 5))
    ou = oracle.ornstein_uhlenbeck(p, H, FRICTION, 0.5**2 / (2 * FRICTION), r)
    close(oracle.thermostat_ornstein_uhlenbeck(p, H, FRICTION, 0.5, r), ou)
    still = oracle.driving_kick(p, H, 0.5, r)
    for thermostat in (0.0, 1e-12, -1e-12):
        close(oracle.thermostat_ornstein_uhlenbeck(p, H, thermostat, 0.5, r), still, 1e-11)

    # a flow, also for ξ < 0: the variances of two halves add up to that of the whole
    def spread(h):
        return oracle.thermostat_ornstein_uhlenbeck(0.0, h, -0.4, 0.5, 1.0) ** 2

    close(spread(H), np.exp(0.4 * H) * spread(H / 2) + spread(H / 2))


def circle_constraint(radius):
    """θ² + ξ² − r² on q = (θ, ξ) flat, and its Jacobian (4.46)."""

    def constraint(q):
        theta, slack = np.split(q, 2)
        return theta**2 + slack**2 - radius**2

    def jacobian(q):
        theta, slack = np.split(q, 2)
        return 2 * np.concatenate([np.diag(theta), np.diag(slack)], axis=1)

    return constraint, jacobian


def on_circles(rng, radius):
    angle = rng.uniform(-np.pi, np.pi, radius.size)
    theta, slack = radius * np.cos(angle), radius * np.sin(angle)
    return theta, slack, *manifold_oracle.c_cola_project(theta, slack, *rng.standard_normal((2, radius.size)), radius)


def test_circle_letters_stay_on_the_circle_and_tangent(rng):
    radius = np.array([0.05, 1.0, 1.0, 5.0])
    state = on_circles(rng, radius)
    energy = state[2] ** 2 + state[3] ** 2
    turned = manifold_oracle.c_cola_ud_a(*state, H, radius)
    close(turned[2] ** 2 + turned[3] ** 2, energy)
    for _ in range(50):
        letters = {
            "A": lambda s, t: manifold_oracle.c_cola_ud_a(*s, t, radius),
            "B": lambda s, t: manifold_oracle.c_cola_ud_b(*s, anharmonic, t, radius),
            "O": lambda s, t: manifold_oracle.c_cola_ud_o(*s, t, FRICTION, 0.01, rng.standard_normal((2, 4)), radius),
        }
        state = oracle.compose("BAOAB", letters, state, H)
        theta, slack, p_theta, p_slack = state
        close(theta**2 + slack**2, radius**2)
        close(theta * p_theta + slack * p_slack, 0.0)


def test_level_set_and_sphere_on_circles_are_the_circle_formulas(rng):
    radius = np.array([0.3, 1.0, 1.0, 5.0])
    constraint, jacobian = circle_constraint(radius)
    theta, slack, p_theta, p_slack = on_circles(rng, radius)
    noise = rng.standard_normal((2, 4))
    q, p, flat = np.concatenate([theta, slack]), np.concatenate([p_theta, p_slack]), noise.reshape(-1)
    rows, row_p = np.stack([theta, slack], axis=-1), np.stack([p_theta, p_slack], axis=-1)

    def grad(x):
        return np.concatenate([np.sin(x[:4]), np.zeros(4)])

    row_grad, row_noise = manifold_oracle.slack_blind(np.sin), noise.T

    def agree(circle, level, sphere):
        close(np.concatenate(circle), level)
        close(np.stack(circle, axis=-1), sphere)

    for h in (H, 4.0):  # 4.42 returns from any distance
        agree(
            manifold_oracle.c_cola_od_step(theta, slack, np.sin, h, TEMPERATURE, noise, radius),
            manifold_oracle.level_set_od_along_new(q, grad, constraint, jacobian, h, TEMPERATURE, flat),
            manifold_oracle.sphere_od_step(rows, row_grad, h, TEMPERATURE, row_noise, radius),
        )
    agree(
        manifold_oracle.c_cola_ud_b(theta, slack, p_theta, p_slack, np.sin, H, radius)[2:],
        manifold_oracle.level_set_b(q, p, grad, jacobian, H)[1],
        manifold_oracle.sphere_b(rows, row_p, row_grad, H, radius)[1],
    )
    agree(
        manifold_oracle.c_cola_ud_o(theta, slack, p_theta, p_slack, H, FRICTION, 0.2, noise, radius)[2:],
        manifold_oracle.level_set_o(q, p, jacobian, H, FRICTION, 0.2, flat)[1],
        manifold_oracle.sphere_o(rows, row_p, H, FRICTION, 0.2, row_noise, radius)[1],
    )
    exact = manifold_oracle.c_cola_ud_a(theta, slack, p_theta, p_slack, H, radius)
    for circle, sphere in zip((exact[:2], exact[2:]), manifold_oracle.sphere_a(rows, row_p, H, radius), strict=True):
        close(np.stack(circle, axis=-1), sphere)
    # RATTLE only approximates the rotation: its error falls as h³ and it reverses exactly
    errors = [
        np.abs(
            manifold_oracle.level_set_a(q, p, constraint, jacobian, h)[0]
            - np.concatenate(manifold_oracle.c_cola_ud_a(theta, slack, p_theta, p_slack, h, radius)[:2])
        ).max()
        for h in (0.02, 0.01)
    ]
    assert 7 < errors[0] / errors[1] < 9
    there = manifold_oracle.level_set_a(q, p, constraint, jacobian, 0.02)
    back = manifold_oracle.level_set_a(there[0], -there[1], constraint, jacobian, 0.02)
    close(back[0], q)
    close(back[1], -p, 1e-11)


def test_level_set_returns_solve_their_equations(rng):
    """On an ellipsoid cut by a plane: no symmetry helps."""
    axes, plane = np.array([1.0, 2.0, 3.0, 4.0]), np.array([[1.0, -1.0, 0.5, 0.2]])

    def constraint(q):
        return np.array([np.sum(axes * q**2) - 4.0, (plane @ q)[0]])

    def jacobian(q):
        return np.vstack([2 * axes * q, plane])

    q = manifold_oracle.return_along_new(rng.standard_normal(4), constraint, jacobian)
    r = rng.standard_normal(4)
    bar = oracle.sgld(q, anharmonic, 0.02, 0.3, r)
    old = manifold_oracle.level_set_od_along_old(q, anharmonic, constraint, jacobian, 0.02, 0.3, r)
    new = manifold_oracle.level_set_od_along_new(q, anharmonic, constraint, jacobian, 0.02, 0.3, r)
    for point, direction in ((old, q), (new, new)):
        close(constraint(point), 0.0)
        close(manifold_oracle.level_set_project(direction, bar - point, jacobian), 0.0)  # bar − point is normal there
    assert np.abs(old - new).max() > 1e-4
    nearby = [
        manifold_oracle.return_along_new(new + 1e-2 * rng.standard_normal(4), constraint, jacobian) for _ in range(50)
    ]
    assert all(np.linalg.norm(bar - new) <= np.linalg.norm(bar - x) + 1e-14 for x in nearby)


@pytest.mark.parametrize("shape", [(7, 4), (5, 5), (3, 6)])
def test_orthogonal_steps_converge_to_orthogonal_matrices(rng, shape):
    q, transposed = manifold_oracle.tall(rng.standard_normal(shape))
    assert transposed == (shape == (3, 6))
    assert q.shape == (max(shape), min(shape))
    q, _ = np.linalg.qr(q)
    eye = np.eye(min(shape))
    p = manifold_oracle.orthogonal_project(q, rng.standard_normal(q.shape))
    noise = rng.standard_normal(q.shape)
    moved = manifold_oracle.orthogonal_od_step(q, anharmonic, 0.02, 0.1, noise)
    close(moved.T @ moved, eye)
    few = [manifold_oracle.orthogonal_od_step(q, anharmonic, 0.02, 0.1, noise, iterations=k) for k in (0, 5, 200)]
    close(few[2], moved)
    assert np.abs(few[1] - moved).max() < np.abs(few[0] - moved).max()
    upper = np.triu_indices(min(shape))  # the level set with its s(s+1)/2 distinct equations says the same

    def constraint(x):
        x = x.reshape(q.shape)
        return (x.T @ x - eye)[upper]

    def jacobian(x):
        x = x.reshape(q.shape)
        basis = np.eye(x.size).reshape(-1, *q.shape)
        return np.stack([(e.T @ x + x.T @ e)[upper] for e in basis], axis=1)

    def grad(x):
        return anharmonic(x.reshape(q.shape)).reshape(-1)

    level = manifold_oracle.level_set_od_along_old(q.ravel(), grad, constraint, jacobian, 0.02, 0.1, noise.ravel())
    close(level, moved.ravel())
    for orthogonal, general in (
        (
            manifold_oracle.orthogonal_a(q, p, 0.05),
            manifold_oracle.level_set_a(q.ravel(), p.ravel(), constraint, jacobian, 0.05),
        ),
        (
            manifold_oracle.orthogonal_b(q, p, anharmonic, H),
            manifold_oracle.level_set_b(q.ravel(), p.ravel(), grad, jacobian, H),
        ),
        (
            manifold_oracle.orthogonal_o(q, p, H, FRICTION, 0.1, noise),
            manifold_oracle.level_set_o(q.ravel(), p.ravel(), jacobian, H, FRICTION, 0.1, noise.ravel()),
        ),
    ):
        new_q, new_p = orthogonal
        close(new_q.T @ new_q, eye)
        close(new_p.T @ new_q + new_q.T @ new_p, 0.0)
        close(new_q.ravel(), general[0])
        close(new_p.ravel(), general[1], 1e-11)


def test_sphere_rows_with_slack_stay_on_their_spheres(rng):
    radius = np.array([1.0, 2.0, 0.5])
    w = manifold_oracle.with_slack(0.1 * rng.standard_normal((3, 4)), radius)
    p = manifold_oracle.sphere_project(w, rng.standard_normal(w.shape), radius)
    grad = manifold_oracle.slack_blind(np.sin)
    close(manifold_oracle.sphere_a(w, 0 * p, H, radius)[0], w)
    for _ in range(20):
        w, p = manifold_oracle.sphere_o(w, p, H, np.inf, 0.1, rng.standard_normal(w.shape), radius)
        w, p = manifold_oracle.sphere_b(w, p, grad, H, radius)
        w, p = manifold_oracle.sphere_a(w, p, H, radius)
        close(np.linalg.norm(w, axis=-1), radius)
        close(np.sum(w * p, axis=-1), 0.0)
