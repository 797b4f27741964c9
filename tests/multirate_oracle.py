"""The thesis's multirate algorithms in plain float64 NumPy: slow, literal, independent of the library.

Algorithm and equation numbers are those of Vlaar's thesis, chapter 5 and section 1.2.3. Parts of θ are a list of arrays
from the slowest to the fastest; grad(theta, batch) gives one gradient per part. Nothing is changed in place.
"""

import numpy as np

# --- Chapter 5 -------------------------------------------------------------------------------------------------------


class Batches:
    """Counts the mini-batches: the gradients a slow part and the fast ones take at one step share theirs."""

    def __init__(self):
        self.number = 0


def multirate_sgd(theta, momenta, grad, h, periods, mu, decay, cycles, drift=True):
    """Algorithms 5.1 (drift), 5.2 (none) and 5.3 (decay), for r scales (5.3.1). Yields θ after every fast step.

    h: the slowest stepsize; periods: K_1, …, K_{r−1}, by which the stepsizes are divided one after the other.
    """
    theta, momenta = [x.copy() for x in theta], [x.copy() for x in momenta]
    stepsizes = h / np.cumprod([1, *periods])
    batches = Batches()

    def kick(part):
        slope = grad(theta, batches.number)[part] + decay[part] * theta[part]
        momenta[part] = mu * momenta[part] + slope

    def scale(part):
        kick(part)
        if part == len(theta) - 1:
            moving = range(len(theta)) if drift else [part]
            for i in moving:
                theta[i] = theta[i] - stepsizes[-1] * momenta[i]
            batches.number += 1
            yield [x.copy() for x in theta]
            return
        if not drift:
            theta[part] = theta[part] - stepsizes[part] * momenta[part]
        for _ in range(periods[part]):
            yield from scale(part + 1)

    for _ in range(cycles):
        yield from scale(0)


def simultaneous_sgd(theta, momenta, grad, lr, every, mu, decay, steps, drift):
    """One gradient a step for all parts that are due, each with its own period, rate and drift. Yields θ."""
    theta, momenta = [x.copy() for x in theta], [x.copy() for x in momenta]
    for t in range(steps):
        slopes = grad(theta, t)
        for i, k in enumerate(every):
            if t % k == 0:
                momenta[i] = mu * momenta[i] + slopes[i] + decay[i] * theta[i]
        for i, k in enumerate(every):
            if drift[i]:
                theta[i] = theta[i] - lr[t] * momenta[i]
            elif t % k == 0:
                theta[i] = theta[i] - k * lr[t] * momenta[i]
        yield [x.copy() for x in theta]


def multirate_langevin(q, p, grad, h, every, letters, programs, steps):
    """One part with period ``every``: at step t the letters of programs[t mod every] act, with the slow step h·every.

    letters[x](q, p, time, gradient) -> (q, p); programs: (letter, share of the slow step) per fast step. Yields (q, p).
    """
    gradient = None
    for t in range(steps):
        if t % every == 0:
            gradient = grad(q)
        for letter, share in programs[t % every]:
            q, p = letters[letter](q, p, share * h * every, gradient)
        yield q, p


def random_subsets(theta, grad, h, k, masks, catch_up=True):
    """5.5.1: masks[c] is True where an entry is off in cycle c. Yields the whole θ after every step."""
    batch = 0
    for off in masks:
        for _ in range(k):
            slope = grad(np.where(off, 0.0, theta), batch)
            theta = np.where(off, theta, theta - h * slope)
            batch += 1
            yield theta
        if catch_up:
            slope = grad(theta, batch)
            theta = theta - np.where(off, h * k, h) * slope
            batch += 1
            yield theta


def composite(theta, grad, h, k, mu, decay, cycles):
    """5.9.3: two copies with their own momenta, steps h and kh, averaged every k. Yields what the model holds."""
    fast_p, slow_p = np.zeros_like(theta), np.zeros_like(theta)
    batch = 0
    for _ in range(cycles):
        slow_p = mu * slow_p + grad(theta, batch) + decay * theta
        slow, fast = theta - k * h * slow_p, theta
        for i in range(k):
            fast_p = mu * fast_p + grad(fast, batch) + decay * fast
            fast = fast - h * fast_p
            batch += 1
            if i < k - 1:
                yield fast
        theta = (fast + slow) / 2
        yield theta


# --- Section 1.2.3 ---------------------------------------------------------------------------------------------------


def respa(q, p, slow, fast, h, k, mass=1.0):
    """Algorithm 1.1."""
    p = p - h / 2 * slow(q)
    for _ in range(k):
        p = p - h / (2 * k) * fast(q)
        q = q + h / k * p / mass
        p = p - h / (2 * k) * fast(q)
    return q, p - h / 2 * slow(q)


def langevin_respa(q, p, slow, fast, h, k, friction, temperature, normals):
    """Algorithm 1.2 (erratum: the O step damps p)."""
    p = p - h / 2 * slow(q)
    for noise in normals:
        p = p - h / (2 * k) * fast(q)
        q = q + h / (2 * k) * p
        p = np.exp(-friction * h / k) * p + np.sqrt(temperature * (1 - np.exp(-2 * friction * h / k))) * noise
        q = q + h / (2 * k) * p
        p = p - h / (2 * k) * fast(q)
    return q, p - h / 2 * slow(q)


def reversible_averaging(Q, P, q, p, slow, fast, h, k, drift, slow_mass=1.0, mass=1.0):
    """Algorithms 1.3 (no drift) and 1.4; averages over the fast trajectory by the trapezoidal rule."""

    def average(direction):
        x, y, forces = q, p, [slow(Q, q)]
        for _ in range(k):
            y = y - direction * h / (2 * k) * fast(Q, x)
            x = x + direction * h / k * y / mass
            y = y - direction * h / (2 * k) * fast(Q, x)
            forces.append(slow(Q, x))
        return (sum(forces) - forces[0] / 2 - forces[-1] / 2) / k

    P = P - h / 2 * average(+1)
    if not drift:
        Q = Q + h / 2 * P / slow_mass
    for _ in range(k):
        p = p - h / (2 * k) * fast(Q, q)
        q = q + h / k * p / mass
        if drift:
            Q = Q + h / k * P / slow_mass
        p = p - h / (2 * k) * fast(Q, q)
    if not drift:
        Q = Q + h / 2 * P / slow_mass
    P = P - h / 2 * average(-1)
    return Q, P, q, p


def respa_matrix(h, omega):
    """(1.35)."""
    c, s = np.cos(omega * h), np.sin(omega * h)
    a = c - h / (2 * omega) * s
    return np.array([[a, s / omega], [-h / 2 * a - s * omega - h / 2 * c, a]])


def averaging_matrix(h, omega_squared, drift):
    """(1.48)–(1.50), variables (Q, q, P, p); the entries of A_RA-1 are printed out of place and put back here."""
    s, c, w = np.sin(omega_squared * h), np.cos(omega_squared * h), omega_squared
    m = np.zeros((4, 4))
    m[0] = 1 - h / 2 * s - h**2 / 2, h / 2 * s, h, h / 2 * (1 - c)
    if drift:
        lag = h - s / w
        m[1] = 1 - c - lag * (h + s) / 2, c + s / 2 * lag, lag, s + (1 - c) / 2 * lag
        m[3] = s - (1 - c) * (h + s) / (2 * w), -s + (1 - c) * s / (2 * w), (1 - c) / w, c + (1 - c) ** 2 / (2 * w)
    else:
        half = 1 - (h / 2 * s + h**2 / 2) / 2
        m[1] = (1 - c) * half, c + (1 - c) / 2 * m[0, 1], (1 - c) / 2 * m[0, 2], s + (1 - c) / 2 * m[0, 3]
        m[3] = s * half, -s + s / 2 * m[0, 1], s / 2 * m[0, 2], c + s / 2 * m[0, 3]
    first = np.array([-s / 2 - h / 2, s / 2, 1, (1 - c) / 2])
    m[2] = first - m[0] * (h / 2 + s / 2) + s / 2 * m[1] - (1 - c) / 2 * m[3]
    return m
