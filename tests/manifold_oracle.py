"""The thesis's methods on circles, spheres, orthogonal matrices and level sets, written as in :mod:`tests.oracle`."""

import numpy as np

from tests.oracle import ornstein_uhlenbeck, sgld

# --- Circle, θᵢ² + ξᵢ² = rᵢ²: noise = (R^θ, R^ξ), grad(θ) = ∂L/∂θ ----------------------------------------------------


def c_cola_od_step(theta, slack, grad, h, temperature, noise, radius):
    """(4.47): Euler–Maruyama on (θ, ξ), then back to the circle at angle α = atan2(ξ̄, θ̄) (erratum: not arctan)."""
    theta_bar = theta - h * grad(theta) + np.sqrt(2 * temperature * h) * noise[0]
    slack_bar = slack + np.sqrt(2 * temperature * h) * noise[1]
    angle = np.arctan2(slack_bar, theta_bar)
    return radius * np.cos(angle), radius * np.sin(angle)


def c_cola_ud_a(theta, slack, p_theta, p_slack, h, radius):
    """A (4.7.2.4): exact rotation by ωh with ω = (ξp_θ − θp_ξ)/r². Returns (θ, ξ, p_θ, p_ξ)."""
    speed = (slack * p_theta - theta * p_slack) / radius**2
    cos, sin = np.cos(speed * h), np.sin(speed * h)
    return (
        cos * theta + sin * slack,
        -sin * theta + cos * slack,
        speed * (-sin * theta + cos * slack),
        -speed * (cos * theta + sin * slack),
    )


def c_cola_ud_b(theta, slack, p_theta, p_slack, grad, h, radius):
    """B (4.7.2.4): p_θ ← p_θ − h(1 − θ²/r²)∂L; p_ξ ← p_ξ + h(θξ/r²)∂L."""
    gradient = grad(theta)
    return (
        theta,
        slack,
        p_theta - h * (1 - theta**2 / radius**2) * gradient,
        p_slack + h * theta * slack / radius**2 * gradient,
    )


def c_cola_ud_o(theta, slack, p_theta, p_slack, h, friction, temperature, noise, radius):
    """O (4.7.2.4): Ornstein–Uhlenbeck in both components, then Π_w."""
    p_theta_bar = ornstein_uhlenbeck(p_theta, h, friction, temperature, noise[0])
    p_slack_bar = ornstein_uhlenbeck(p_slack, h, friction, temperature, noise[1])
    return (theta, slack, *c_cola_project(theta, slack, p_theta_bar, p_slack_bar, radius))


def c_cola_project(theta, slack, p_theta, p_slack, radius):
    """Π_w (4.43) on circles: p_θ − θ(θp_θ + ξp_ξ)/r², p_ξ − ξ(θp_θ + ξp_ξ)/r²."""
    normal = (theta * p_theta + slack * p_slack) / radius**2
    return p_theta - theta * normal, p_slack - slack * normal


# --- Sphere (4.3): rows w (last axis) with ‖w‖ = r; with a slack, w = (θ-row, ξ) by with_slack ---------------------


def with_slack(theta, radius):
    """Append ξ = √(r² − ‖θ‖²) to every row of θ."""
    slack = np.sqrt(radius**2 - np.sum(theta**2, axis=-1))
    return np.concatenate([theta, slack[..., None]], axis=-1)


def slack_blind(grad):
    """The gradient of U(θ, ξ) = L(θ) on rows w = (θ, ξ): its last column is zero."""
    return lambda w: np.concatenate([grad(w[..., :-1]), np.zeros_like(w[..., -1:])], axis=-1)


def sphere_od_step(w, grad, h, temperature, noise, radius):
    """(4.42) on spheres: Euler–Maruyama, then every row scaled to length r."""
    w_bar = w - h * grad(w) + np.sqrt(2 * temperature * h) * noise
    return np.asarray(radius)[..., None] * w_bar / np.linalg.norm(w_bar, axis=-1, keepdims=True)


def sphere_project(w, p, radius):
    """Π = I − wwᵀ/r² on every row."""
    return p - w * np.sum(w * p, axis=-1, keepdims=True) / np.asarray(radius)[..., None] ** 2


def sphere_a(w, p, h, radius):
    """A: the great circle, ω = ‖p‖/r: w ← cos(ωh)w + (sin(ωh)/ω)p; p ← cos(ωh)p − ω sin(ωh)w."""
    speed = np.linalg.norm(p, axis=-1, keepdims=True) / np.asarray(radius)[..., None]
    cos, sin = np.cos(speed * h), np.sin(speed * h)
    return cos * w + h * np.sinc(speed * h / np.pi) * p, cos * p - speed * sin * w


def sphere_b(w, p, grad, h, radius):
    """B: p ← Π(p − h∇U(w))."""
    return w, sphere_project(w, p - h * grad(w), radius)


def sphere_o(w, p, h, friction, temperature, noise, radius):
    """O: p ← Π(e^{−γh}p + √(τ(1 − e^{−2γh}))R)."""
    return w, sphere_project(w, ornstein_uhlenbeck(p, h, friction, temperature, noise), radius)


# --- Orthogonality (4.50): QᵀQ = I, Q tall ---------------------------------------------------------------------------


def tall(weight):
    """(4.49): (Q, transposed?) with at least as many rows as columns (erratum: Algorithm 4.1's text says wide)."""
    transposed = weight.shape[0] < weight.shape[1]
    return (weight.T if transposed else weight), transposed


def orthogonal_return(q_bar, q_old, iterations=None, tolerance=1e-14, scale=1.0):
    """(4.55): Q⁽ᵏ⁺¹⁾ = Q⁽ᵏ⁾ − Q_n Λ⁽ᵏ⁾, Λ⁽ᵏ⁾ = ½(Q⁽ᵏ⁾ᵀQ⁽ᵏ⁾ − I); K times, or (None) until ‖Λ⁽ᵏ⁾‖₂ ≤ tolerance.

    On QᵀQ = c²I with c the scale, Λ⁽ᵏ⁾ = ½(Q⁽ᵏ⁾ᵀQ⁽ᵏ⁾/c² − I).
    """
    q = q_bar
    for _ in range(10_000 if iterations is None else iterations):
        multiplier = (q.T @ q / scale**2 - np.eye(q.shape[1])) / 2
        if iterations is None and np.linalg.norm(multiplier, 2) <= tolerance:
            return q
        q = q - q_old @ multiplier
    if iterations is None:
        raise RuntimeError("(4.55) did not converge: the step is too long")
    return q


def orthogonal_od_step(q, grad, h, temperature, noise, iterations=None, scale=1.0):
    """Algorithm 4.1: Euler–Maruyama, then (4.55) with K iterations or (None) to convergence."""
    return orthogonal_return(q - h * grad(q) + np.sqrt(2 * temperature * h) * noise, q, iterations, scale=scale)


def orthogonal_project(q, p, scale=1.0):
    """Π_Q (4.15): P − ½Q(PᵀQ + QᵀP), over c² on QᵀQ = c²I."""
    return p - q @ (p.T @ q + q.T @ p) / (2 * scale**2)


def orthogonal_a(q, p, h, iterations=None, scale=1.0):
    """A, RATTLE (4.56)–(4.57): Q̄ = Q + hP; Q′ by (4.55); P′ = Π_{Q′}(P + (Q′ − Q̄)/h)."""
    q_bar = q + h * p
    q_new = orthogonal_return(q_bar, q, iterations, scale=scale)
    return q_new, orthogonal_project(q_new, p + (q_new - q_bar) / h, scale)


def orthogonal_b(q, p, grad, h, scale=1.0):
    """B (Algorithm 4.2): P ← Π_Q(P − h∇U(Q))."""
    return q, orthogonal_project(q, p - h * grad(q), scale)


def orthogonal_o(q, p, h, friction, temperature, noise, scale=1.0):
    """O (Algorithm 4.2): P ← Π_Q(e^{−γh}P + √(τ(1 − e^{−2γh}))R)."""
    return q, orthogonal_project(q, ornstein_uhlenbeck(p, h, friction, temperature, noise), scale)


# --- Any level set g(q) = 0: q flat (d,), constraint g(q) -> (m,), jacobian G(q) -> (m, d) -------------------------


def newton(residual, derivative, start):
    """Solve residual(x) = 0. Stops after a step ≤ 1e-12 (quadratic convergence: x is then at round-off)."""
    x = start
    for _ in range(100):
        step = np.linalg.lstsq(derivative(x), -residual(x), rcond=1e-12)[0]
        x = x + step
        if np.linalg.norm(step) <= 1e-12 * (1 + np.linalg.norm(x)):
            break
    if not np.linalg.norm(residual(x)) <= 1e-11 * (1 + np.linalg.norm(x)) ** 2:
        raise RuntimeError("Newton did not converge: the step is too long")
    return x


def return_along_old(q_bar, q_old, constraint, jacobian):
    """(4.41): q̄ − G(q_n)ᵀλ with g = 0. From q_n's tangent plane, hence the root closest to q_n (4.7.2.3)."""
    normals = jacobian(q_old).T

    def position(multiplier):
        return q_bar - normals @ multiplier

    start = np.linalg.lstsq(normals, q_bar - q_old, rcond=None)[0]
    return position(newton(lambda m: constraint(position(m)), lambda m: -jacobian(position(m)) @ normals, start))


def return_along_new(q_bar, constraint, jacobian):
    """(4.42): q = q̄ − G(q)ᵀλ with g(q) = 0, by Newton in (q, λ) from the Gauss–Newton foot of q̄."""
    size = q_bar.size
    foot = q_bar
    for _ in range(50):
        foot = foot - np.linalg.pinv(jacobian(foot)) @ constraint(foot)

    def residual(x):
        return np.concatenate([x[:size] - q_bar + jacobian(x[:size]).T @ x[size:], constraint(x[:size])])

    def derivative(x):
        q, multiplier = x[:size], x[size:]
        rows = 1e-6 * np.eye(size)  # Σ λᵢ∇²gᵢ by central differences: it only sets the speed, not the answer
        curvature = np.stack([(jacobian(q + e) - jacobian(q - e)).T @ multiplier / 2e-6 for e in rows], axis=1)
        normals = jacobian(q)
        corner = np.zeros((len(multiplier), len(multiplier)))
        return np.block([[np.eye(size) + curvature, normals.T], [normals, corner]])

    multiplier = np.linalg.lstsq(jacobian(foot).T, q_bar - foot, rcond=None)[0]
    return newton(residual, derivative, np.concatenate([foot, multiplier]))[:size]


def level_set_od_along_old(q, grad, constraint, jacobian, h, temperature, noise):
    """(4.41): Euler–Maruyama, then back along ∇g at the old point."""
    return return_along_old(sgld(q, grad, h, temperature, noise), q, constraint, jacobian)


def level_set_od_along_new(q, grad, constraint, jacobian, h, temperature, noise):
    """(4.42): Euler–Maruyama, then back along ∇g at the new point."""
    return return_along_new(sgld(q, grad, h, temperature, noise), constraint, jacobian)


def level_set_project(q, p, jacobian):
    """Π(q)p = (I − G⁺G)p (erratum: (4.43) misses the identity)."""
    normals = jacobian(q)
    return p - np.linalg.pinv(normals) @ (normals @ p)


def level_set_a(q, p, constraint, jacobian, h):
    """A by RATTLE (4.7.2.2): q̄ = q + hp; q′ = q̄ − G(q)ᵀλ with g(q′) = 0; p′ = Π(q′)(p + (q′ − q̄)/h)."""
    q_bar = q + h * p
    q_new = return_along_old(q_bar, q, constraint, jacobian)
    return q_new, level_set_project(q_new, p + (q_new - q_bar) / h, jacobian)


def level_set_b(q, p, grad, jacobian, h):
    """B (4.44): p ← Π(q)(p − h∇U(q))."""
    return q, level_set_project(q, p - h * grad(q), jacobian)


def level_set_o(q, p, jacobian, h, friction, temperature, noise):
    """O (4.45): p ← Π(q)(e^{−γh}p + √(τ(1 − e^{−2γh}))R)."""
    return q, level_set_project(q, ornstein_uhlenbeck(p, h, friction, temperature, noise), jacobian)
