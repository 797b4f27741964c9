"""The thesis's algorithms in plain float64 NumPy: slow, literal, independent of the library.

Equation, algorithm and section numbers are those of Vlaar's thesis; its errata are corrected and marked (erratum).
Conventions: q position (θ in the thesis), p momentum, h stepsize, friction γ (∞ allowed), temperature τ = β⁻¹,
noise: standard normals, always given by the caller; grad(q) = ∇U(q), so the thesis's G is −grad.
Nothing is changed in place. A word is read from left to right: "OBA" applies O first (Algorithm 2.1).
"""

import numpy as np

# --- Letters of the unconstrained splittings -----------------------------------------------------------------------


def drift(q, p, h):
    """A (2.53a): q ← q + hp."""
    return q + h * p


def kick(q, p, grad, h):
    """B (2.53b): p ← p − h∇U(q)."""
    return p - h * grad(q)


def ornstein_uhlenbeck(p, h, friction, temperature, noise):
    """O (2.53c): p ← e^{−γh} p + √(τ(1 − e^{−2γh})) R; γ = ∞ redraws p = √τ R. γ and τ may be arrays (3.25)."""
    return np.exp(-friction * h) * p + np.sqrt(temperature * -np.expm1(-2 * friction * h)) * noise


def thermostat_decay(p, h, thermostat):
    """C (2.59): p ← e^{−hξ} p (erratum: no ε here, as (3.31) would have it)."""
    return np.exp(-h * thermostat) * p


def driving_kick(p, h, driving_noise, noise):
    """D (2.59): p ← p + σ_A √h R."""
    return p + driving_noise * np.sqrt(h) * noise


def thermostat_update(p, h, thermostat, coupling, temperature, freedom=None):
    """E (2.59): ξ ← ξ + hε(pᵀp − Nτ). N is the number of entries of p unless given (subtract the constraints)."""
    freedom = p.size if freedom is None else freedom
    return thermostat + h * coupling * (np.sum(p * p) - freedom * temperature)


def thermostat_ornstein_uhlenbeck(p, h, thermostat, driving_noise, noise):
    """F (2.61), C and D merged: p ← e^{−hξ} p + σ_A √((1 − e^{−2hξ})/(2ξ)) R; √h R at ξ = 0; any sign of ξ."""
    variance = h if thermostat == 0 else -np.expm1(-2 * h * thermostat) / (2 * thermostat)
    return np.exp(-h * thermostat) * p + driving_noise * np.sqrt(variance) * noise


# --- Words ---------------------------------------------------------------------------------------------------------


def compose(word, letters, state, h):
    """Apply the letters from left to right; each of k equal letters lasts h/k. letters[x](state, time) -> state."""
    for letter in word:
        state = letters[letter](state, h / word.count(letter))
    return state


def run_word(
    word, q, p, grad, h, friction, temperature, noise, thermostat=0.0, coupling=0.0, driving_noise=0.0, freedom=None
):
    """One step of any word over ABCDEFO, with a new gradient at every B. Returns (q, p, ξ).

    noise: a sequence of arrays, one for each O, D or F in the order of the word.
    """
    normals = iter(noise)
    letters = {
        "A": lambda s, t: (drift(s[0], s[1], t), s[1], s[2]),
        "B": lambda s, t: (s[0], kick(s[0], s[1], grad, t), s[2]),
        "C": lambda s, t: (s[0], thermostat_decay(s[1], t, s[2]), s[2]),
        "D": lambda s, t: (s[0], driving_kick(s[1], t, driving_noise, next(normals)), s[2]),
        "E": lambda s, t: (s[0], s[1], thermostat_update(s[1], t, s[2], coupling, temperature, freedom)),
        "F": lambda s, t: (s[0], thermostat_ornstein_uhlenbeck(s[1], t, s[2], driving_noise, next(normals)), s[2]),
        "O": lambda s, t: (s[0], ornstein_uhlenbeck(s[1], t, friction, temperature, next(normals)), s[2]),
    }
    return compose(word, letters, (q, p, thermostat), h)


# --- The same methods as explicit formulas (no letters) ------------------------------------------------------------


def sgd_momentum(q, v, grad, lr, momentum):
    """PyTorch's form: v ← μv + ∇U(q); q ← q − lr·v. With v = −p/h, μ = e^{−γh}, lr = h² it is OBA (erratum)."""
    v = momentum * v + grad(q)
    return q - lr * v, v


def sgld(q, grad, h, temperature, noise):
    """(2.51) Euler–Maruyama: q ← q − h∇U(q) + √(2τh) R."""
    return q - h * grad(q) + np.sqrt(2 * temperature * h) * noise


def baoab_limit(q, grad, h, temperature, noise, previous_noise):
    """(2.56), second line, with h for h̃: q ← q − h∇U(q) + √(2τh) (R_n + R_{n−1})/2."""
    return q - h * grad(q) + np.sqrt(2 * temperature * h) * (noise + previous_noise) / 2


def oba(q, p, grad, h, friction, temperature, noise):
    """Algorithm 2.1: p ← e^{−γh}p + √(τ(1 − e^{−2γh}))R; p ← p − h∇U(q); q ← q + hp."""
    alpha = np.exp(-friction * h)
    p = alpha * p + np.sqrt(temperature * (1 - alpha**2)) * noise - h * grad(q)
    return q + h * p, p


def abo(q, p, grad, h, friction, temperature, noise):
    """A, B, O of (2.53), whole steps: q ← q + hp; p ← e^{−γh}(p − h∇U(q)) + √(τ(1 − e^{−2γh}))R."""
    alpha = np.exp(-friction * h)
    q = q + h * p
    return q, alpha * (p - h * grad(q)) + np.sqrt(temperature * (1 - alpha**2)) * noise


def baoab(q, p, grad, h, friction, temperature, noise):
    """(2.55), line by line."""
    alpha = np.exp(-friction * h)
    p_half = p - h / 2 * grad(q)
    q_half = q + h / 2 * p_half
    p_hat = alpha * p_half + np.sqrt(temperature * (1 - alpha**2)) * noise
    q_new = q_half + h / 2 * p_hat
    return q_new, p_hat - h / 2 * grad(q_new)


def adaptive_langevin(q, p, thermostat, grad, h, temperature, coupling, driving_noise, noise, freedom=None):
    """BACDEDCAB (2.60), noise = (R, R′) for the two D. Returns (q, p, ξ)."""
    freedom = p.size if freedom is None else freedom
    p = p - h / 2 * grad(q)
    q = q + h / 2 * p
    p = np.exp(-h / 2 * thermostat) * p + driving_noise * np.sqrt(h / 2) * noise[0]
    thermostat = thermostat + h * coupling * (np.sum(p**2) - freedom * temperature)
    p = np.exp(-h / 2 * thermostat) * (p + driving_noise * np.sqrt(h / 2) * noise[1])
    q = q + h / 2 * p
    return q, p - h / 2 * grad(q), thermostat


# --- Two-part methods: θ⁽¹⁾ = q[:split], θ⁽²⁾ = q[split:], all in flat vectors -------------------------------------


def lol(q, p, grad, h, split, friction, temperature, noise, second_temperature=0.0):
    """(3.26): BAOAB with γ₁, τ₁ on part 1 and γ₂ → ∞, τ₂ on part 2. Returns (q, p)."""
    alpha = np.exp(-friction * h)
    p_half = p - h / 2 * grad(q)
    q_half = q + h / 2 * p_half
    p1_hat = alpha * p_half[:split] + np.sqrt(temperature * (1 - alpha**2)) * noise[:split]
    p2_hat = np.sqrt(second_temperature) * noise[split:]
    p_hat = np.concatenate([p1_hat, p2_hat])
    q_new = q_half + h / 2 * p_hat
    return q_new, p_hat - h / 2 * grad(q_new)


def dhsgd(q, p1, grad, h, split, second_stepsize=None):
    """(3.27)–(3.30): Verlet on part 1, θ⁽²⁾ ← θ⁽²⁾ + (h²/2)G⁽²⁾(θ). Returns (q, p⁽¹⁾).

    It is LOL with γ₁ = 0, τ₂ = 0 when p⁽²⁾ = (h/2)G⁽²⁾(θ), as LOL leaves it after every step; LOL's first step from
    p⁽²⁾ = 0 moves part 2 by half as much, (h²/4)G⁽²⁾.
    """
    second_stepsize = h**2 / 2 if second_stepsize is None else second_stepsize
    gradient = grad(q)
    p1_half = p1 - h / 2 * gradient[:split]
    q_new = np.concatenate([q[:split] + h * p1_half, q[split:] - second_stepsize * gradient[split:]])
    return q_new, p1_half - h / 2 * grad(q_new)[:split]


def dhsgdc(q, p1, grad, h, split):
    """3.3.2.1: DHSGD with h in place of h²/2 in (3.29) (Euler, not Heun)."""
    return dhsgd(q, p1, grad, h, split, second_stepsize=h)


def adlala(
    q,
    p,
    thermostat,
    grad,
    h,
    split,
    first_temperature,
    coupling,
    driving_noise,
    second_friction,
    second_temperature,
    first_noise,
    second_noise,
    freedom=None,
):
    """(3.31) by (3.23) and (3.20): BACDEDCAB on part 1, BAOAB on part 2, A and B together. Returns (q, p, ξ).

    first_noise = (R, R′) for the two D of part 1; second_noise = R for the O of part 2.
    """
    p = p - h / 2 * grad(q)
    q = q + h / 2 * p
    p1, p2 = p[:split], p[split:]
    freedom = p1.size if freedom is None else freedom
    p1 = np.exp(-h / 2 * thermostat) * p1 + driving_noise * np.sqrt(h / 2) * first_noise[0]
    thermostat = thermostat + h * coupling * (np.sum(p1**2) - freedom * first_temperature)
    p1 = np.exp(-h / 2 * thermostat) * (p1 + driving_noise * np.sqrt(h / 2) * first_noise[1])
    p2 = ornstein_uhlenbeck(p2, h, second_friction, second_temperature, second_noise)
    p = np.concatenate([p1, p2])
    q = q + h / 2 * p
    return q, p - h / 2 * grad(q), thermostat


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


def orthogonal_return(q_bar, q_old, iterations=None, tolerance=1e-14):
    """(4.55): Q⁽ᵏ⁺¹⁾ = Q⁽ᵏ⁾ − Q_n Λ⁽ᵏ⁾, Λ⁽ᵏ⁾ = ½(Q⁽ᵏ⁾ᵀQ⁽ᵏ⁾ − I); K times, or (None) until ‖Λ⁽ᵏ⁾‖₂ ≤ tolerance."""
    q = q_bar
    for _ in range(10_000 if iterations is None else iterations):
        multiplier = (q.T @ q - np.eye(q.shape[1])) / 2
        if iterations is None and np.linalg.norm(multiplier, 2) <= tolerance:
            return q
        q = q - q_old @ multiplier
    if iterations is None:
        raise RuntimeError("(4.55) did not converge: the step is too long")
    return q


def orthogonal_od_step(q, grad, h, temperature, noise, iterations=None):
    """Algorithm 4.1: Euler–Maruyama, then (4.55) with K iterations or (None) to convergence."""
    return orthogonal_return(q - h * grad(q) + np.sqrt(2 * temperature * h) * noise, q, iterations)


def orthogonal_project(q, p):
    """Π_Q (4.15): P − ½Q(PᵀQ + QᵀP)."""
    return p - q @ (p.T @ q + q.T @ p) / 2


def orthogonal_a(q, p, h, iterations=None):
    """A, RATTLE (4.56)–(4.57): Q̄ = Q + hP; Q′ by (4.55); P′ = Π_{Q′}(P + (Q′ − Q̄)/h)."""
    q_bar = q + h * p
    q_new = orthogonal_return(q_bar, q, iterations)
    return q_new, orthogonal_project(q_new, p + (q_new - q_bar) / h)


def orthogonal_b(q, p, grad, h):
    """B (Algorithm 4.2): P ← Π_Q(P − h∇U(Q))."""
    return q, orthogonal_project(q, p - h * grad(q))


def orthogonal_o(q, p, h, friction, temperature, noise):
    """O (Algorithm 4.2): P ← Π_Q(e^{−γh}P + √(τ(1 − e^{−2γh}))R)."""
    return q, orthogonal_project(q, ornstein_uhlenbeck(p, h, friction, temperature, noise))


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
