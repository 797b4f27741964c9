"""Sampling: the Bayes posterior of a model's weights, with and without a Metropolis test."""

from .kernels import BAOAB, HMC, MALA, SGLD, AdL, Cyclical
from .local import LearningCoefficient, learning_coefficient, local
from .posterior import Posterior, Prediction
from .sample import load, sample

__all__ = [
    "BAOAB",
    "HMC",
    "MALA",
    "SGLD",
    "AdL",
    "Cyclical",
    "LearningCoefficient",
    "Posterior",
    "Prediction",
    "learning_coefficient",
    "load",
    "local",
    "sample",
]
