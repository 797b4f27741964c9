"""Kernels: what one transition of a chain is. Settings are plain numbers, so that a resumed run can compare them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BAOAB", "HMC", "MALA", "SGLD", "AdL", "Cyclical", "Kernel", "kernel_named"]


@dataclass(frozen=True)
class BAOAB:
    """Underdamped Langevin dynamics, exact for Gaussian posteriors at every stable lr, second order otherwise.

    friction: γ. None damps the prior's own frequency critically, γ = 2/(std·√num_data) with the widest std, but at
        least so that the run has ten correlation times 2/γ; with minibatches 1/lr, which lets their noise heat least.
    """

    friction: float | None = None
    word = "BAOAB"

    def __post_init__(self) -> None:
        _check_friction(self.friction)


@dataclass(frozen=True)
class SGLD:
    """Stochastic gradient Langevin dynamics with the noise of two steps averaged (2.56): exact for Gaussians."""

    word = "M"


@dataclass(frozen=True)
class AdL:
    """Adaptive Langevin (2.58): a thermostat removes what minibatch noise heats, as far as that is isotropic.

    friction: that of the thermostat without noise of gradients; None as for :class:`BAOAB` with full batches, at most
        0.1/lr, and 0.1/lr with minibatches.
    """

    friction: float | None = None
    word = "BACDEDCAB"

    def __post_init__(self) -> None:
        _check_friction(self.friction)


@dataclass(frozen=True)
class Cyclical:
    """Steps that start at lr and fall to 0 along half a cosine, ``cycles`` times: each cycle may find another mode.

    The first part of a cycle, ``exploration`` of it, has long steps and keeps no draws. Within a mode draws are those
    of :class:`SGLD`; how often a mode is found is not its posterior mass.
    """

    cycles: int = 4
    exploration: float = 0.5
    word = "M"

    def __post_init__(self) -> None:
        if not isinstance(self.cycles, int) or self.cycles < 1 or not 0 <= self.exploration < 1:
            raise ValueError(
                f"cycles must be a whole number of at least 1 and exploration lie in [0, 1), got {self.cycles} and "
                f"{self.exploration}"
            )


@dataclass(frozen=True)
class HMC:
    """Hamiltonian Monte Carlo: ``leapfrogs`` steps from fresh momenta, then accepted or rejected. Needs full batches.

    The law is exact whatever lr is. On constraints the steps are RATTLE's: with an exact drift (spheres, circles) or
    with one that is run backwards to see whether it returns, and rejected if it does not. lr varies by ±20 % from
    transition to transition, so that no orbit closes. ``acceptance`` is what lr=None aims at.
    """

    leapfrogs: int = 16
    acceptance: float = 0.8

    def __post_init__(self) -> None:
        if not isinstance(self.leapfrogs, int) or self.leapfrogs < 1 or not 0 < self.acceptance < 1:
            raise ValueError(
                f"leapfrogs must be a whole number of at least 1 and acceptance lie in (0, 1), got {self.leapfrogs} "
                f"and {self.acceptance}"
            )


@dataclass(frozen=True)
class MALA(HMC):
    """The Metropolis-adjusted Langevin algorithm: :class:`HMC` with one leapfrog step."""

    leapfrogs: int = 1
    acceptance: float = 0.574


def _check_friction(friction: float | None) -> None:
    if friction is not None and not friction > 0:
        raise ValueError(f"friction (γ) must be positive, or None to be chosen, got {friction}: without it no noise")


Kernel = BAOAB | SGLD | AdL | Cyclical | HMC
_NAMES: dict[str, type[Kernel]] = {
    "sgld": SGLD, "baoab": BAOAB, "adl": AdL, "cyclical": Cyclical, "mala": MALA, "hmc": HMC,
}  # fmt: skip


def kernel_named(kernel: str | Kernel) -> Kernel:
    """A kernel by its name, with its default settings; or the one that was given."""
    if isinstance(kernel, (BAOAB, SGLD, AdL, Cyclical, HMC)):
        return kernel
    if kernel not in _NAMES:
        raise ValueError(
            f"kernel must be one of {', '.join(_NAMES)}, or an object such as BAOAB(friction=0.1); got {kernel!r}"
        )
    return _NAMES[kernel]()
