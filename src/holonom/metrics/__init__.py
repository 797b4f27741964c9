"""Metrics of trained networks: boundaries, temperatures, mixing, calibration, agreement, sharpness."""

from .agreement import Agreement, Spread, agreement, certainty, certainty_by_reference, max_softmax
from .calibration import brier_score, expected_calibration_error, negative_log_likelihood
from .chains import autocorrelation_time, effective_sample_size, potential_scale_reduction
from .curvature import CurvatureSummary, boundary_curvature, boundary_curvatures, curvature_summary, mean_curvature
from .distance import Travelled, block_distances, distance, travelled
from .gradients import GradientNorms, gradient_norms
from .hessian import Estimate, Hessian
from .section import Section, cross_section
from .thermodynamics import Reading, Thermometer, equipartition
from .weights import WeightHistory

__all__ = [
    "Agreement",
    "CurvatureSummary",
    "Estimate",
    "GradientNorms",
    "Hessian",
    "Reading",
    "Section",
    "Spread",
    "Thermometer",
    "Travelled",
    "WeightHistory",
    "agreement",
    "autocorrelation_time",
    "block_distances",
    "boundary_curvature",
    "boundary_curvatures",
    "brier_score",
    "certainty",
    "certainty_by_reference",
    "cross_section",
    "curvature_summary",
    "distance",
    "effective_sample_size",
    "equipartition",
    "expected_calibration_error",
    "gradient_norms",
    "max_softmax",
    "mean_curvature",
    "negative_log_likelihood",
    "potential_scale_reduction",
    "travelled",
]
