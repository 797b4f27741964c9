"""The thesis's algorithms in plain float64 NumPy: slow, literal, independent of the library.

Equation, algorithm and section numbers are those of Vlaar's thesis; its errata are corrected and marked (erratum).
Conventions: q position (θ in the thesis), p momentum, h stepsize, friction γ (∞ allowed), temperature τ = β⁻¹,
noise: standard normals, always given by the caller; grad(q) = ∇U(q), so the thesis's G is −grad.
Nothing is changed in place. A word is read from left to right: "OBA" applies O first (Algorithm 2.1).
Methods on manifolds are in :mod:`tests.manifold_oracle`.
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
