"""Six settings to begin with, each with two sentences on what to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .settings import Settings, read_settings


@dataclass(frozen=True)
class Preset:
    """A title, two sentences, and settings, which those of :class:`Settings` complete."""

    title: str
    text: str
    given: dict[str, Any]

    @property
    def settings(self) -> Settings:
        return read_settings(self.given, Settings())


SPIRAL = {"data": "spirals", "turns": 2.0, "noise": 0.02, "scale": 2.0}
LANGEVIN = {"method": "baoab", "lr": 0.3, "friction": 1.0}

PRESETS = {
    "small-network": Preset(
        "A small network",
        "Twenty hidden units, whose weights start near zero, are to learn a spiral: Adam stays near 62 % for thousands "
        "of steps. AdLaLa, which adds noise and adapts its friction to it, trains the same network past this plateau, "
        "and its boundary winds into the spiral.",
        {
            **SPIRAL, "points": 500, "batch": 25, "depth": 1, "width": 20, "start": "small",
            "arms": [
                {"method": "adlala", "lr": 0.25, "friction": 0.5, "coupling": 0.1, "driving_noise": 0.01},
                {"method": "adam", "lr": 0.005},
            ],
        },
    ),
    "orthogonality": Preset(
        "Why orthogonality",
        "Ten hidden layers: most singular values of SGD's weights are so small that hardly any signal passes, and it "
        "stays at 50 %, as good as guessing. With the same step and momentum, but orthogonal weights (all singular "
        "values 1) between the hidden layers, the network learns the spiral.",
        {
            **SPIRAL, "points": 300, "batch": 20, "depth": 10, "width": 30,
            "arms": [
                {"method": "o_ud", "lr": 0.2, "friction": 0.5, "temperature": 0.0},
                {"method": "sgd", "lr": 0.04, "momentum": 0.9},
            ],
        },
    ),
    "fig1": Preset(
        "The paper's Fig. 1",
        "A hundred noisy points, 500 units and batches of two, as published: C-SGLD keeps every weight on a circle of "
        "radius 1 (output: 5), SGD lets them grow. In a hundred runs of 500,000 steps the test loss ended at 0.46 "
        "against 0.91; the difference shows late, so let them run.",
        {
            "data": "spirals", "turns": 2.0, "noise": 0.05, "scale": 1.0, "points": 100, "batch": 2, "depth": 1,
            "width": 500,
            "arms": [
                {"method": "c_od", "lr": 0.05, "temperature": 5e-5, "radius": 1.0, "output_radius": 5.0},
                {"method": "sgd", "lr": 0.05},
            ],
        },
    ),
    "goldilocks": Preset(
        "Goldilocks temperature",
        "The same Langevin dynamics twice, from weights near zero: at τ = 0.001 the noise takes the network off this "
        "plateau, at τ = 0 that takes about three times as many steps. Slide B's temperature up to 0.1, and it is too "
        "hot to learn.",
        {
            **SPIRAL, "points": 500, "batch": 25, "depth": 1, "width": 20, "start": "small",
            "arms": [{**LANGEVIN, "temperature": 1e-3}, {**LANGEVIN, "temperature": 0.0}],
        },
    ),
    "thermostat": Preset(
        "Thermostat against minibatch noise",
        "Both arms are set to τ = 0.0001 and get batches of four, whose noise heats B's layers to several times that. "
        "The adaptive friction of A removes most of it: compare ● (momenta) and ◇ (positions) with the bar in "
        "“Temperatures” below, then make the batch larger.",
        {
            "data": "circles", "noise": 0.3, "scale": 1.0, "points": 500, "batch": 4, "depth": 1, "width": 50,
            "arms": [
                {"method": "adl", "lr": 0.2, "temperature": 1e-4},
                {"method": "baoab", "lr": 0.2, "friction": 1.0, "temperature": 1e-4},
            ],
        },
    ),
    "replicas": Preset(
        "Sixteen replicas",
        "Forty noisy points: sixteen networks trained by Adam become certain where they cannot know, and their test "
        "loss climbs. Langevin dynamics on circles at τ = 1/40 samples the posterior instead: choose “spread” to see "
        "where its replicas disagree.",
        {
            "data": "xor", "noise": 0.1, "scale": 1.0, "points": 40, "batch": 40, "depth": 2, "width": 16,
            "replicas": 16,
            "arms": [
                {
                    "method": "c_ud", "lr": 0.2, "friction": 1.0, "temperature": 0.025, "radius": 1.5,
                    "output_radius": 1.5,
                },
                {"method": "adam", "lr": 0.01},
            ],
        },
    ),
}  # fmt: skip

DEFAULT = "small-network"
