"""Tables, figures and claims of the fine-tuning experiments."""

from __future__ import annotations

import numpy as np

from ...claims import Claim, greater, mean_and_half_width, median_interval
from ...run import Array, Run
from ...verdicts import judge
from .comparison import FULL, HEAD, LAST, OURS, OURS_LAST, OURS_TUNED, Outcome

MARGIN = 0.01


def report(run: Run, outcomes: dict[str, Outcome], published: dict[str, str] | None = None) -> None:
    """Accuracy and time of every arm, as a table, as a figure and, run by run, as CSV."""
    accuracies = (
        (name, epoch, run_, value)
        for name, one in outcomes.items()
        for epoch, row in enumerate(one.accuracy)
        for run_, value in enumerate(row)
    )
    run.save_rows("accuracies.csv", ["arm", "epoch", "run", "test accuracy"], accuracies)
    times = ((name, number, x) for name, one in outcomes.items() for number, x in enumerate(one.ratios))
    run.save_rows("times.csv", ["arm", "round", "time over full fine-tuning"], times)
    rows = [
        [
            name,
            (published or {}).get(name, "–"),
            f"{100 * one.final.mean():.2f}",
            f"{100 * one.final.min():.2f}",
            f"{100 * one.final.max():.2f}",
            f"{np.median(one.ratios):.2f}",
        ]
        for name, one in outcomes.items()
    ]
    columns = ["fine-tuning", "published %", "mean test accuracy %", "min %", "max %", "time of a step / full"]
    run.table("Accuracy and time", columns, rows)
    caption = "Test accuracy after every epoch (mean and range), and where training ends: accuracy against time."
    with run.figure("transfer", caption, ncols=2, figsize=(11, 4.2)) as axes:
        for name, one in outcomes.items():
            percent = 100 * one.accuracy
            epochs = np.arange(len(percent))
            (line,) = axes[0, 0].plot(epochs, percent.mean(1), label=name)
            axes[0, 0].fill_between(epochs, percent.min(1), percent.max(1), color=line.get_color(), alpha=0.12, lw=0)
            half = mean_and_half_width(100 * one.final)[1]
            spread = half if np.isfinite(half) else 0.0
            axes[0, 1].errorbar(np.median(one.ratios), percent[-1].mean(), spread, fmt="o", capsize=3, label=name)
        axes[0, 0].set(xlabel="epoch", ylabel="test accuracy, %")
        axes[0, 1].set(xlabel="time of a step / full fine-tuning", ylabel="final test accuracy, %")
        axes[0, 1].set_xlim(left=0)
        lines, names = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def usual_claims(outcomes: dict[str, Outcome], times: str) -> list[Claim]:
    """Of Figs. 5.4 and 5.6: the time, and the accuracy against all baselines."""
    ours = outcomes[OURS]
    full = outcomes[FULL].final
    tuned = [
        greater("with a step of its own too, to 1 %", "one step for all", one.final, full, -MARGIN)
        for name, one in outcomes.items()
        if name == OURS_TUNED
    ]
    return [
        shorter("k = 5 takes at most 0.55 of the time", times, ours.ratios, 0.55),
        greater("as accurate as full fine-tuning, to 1 %", "same or better (figure)", ours.final, full, -MARGIN),
        greater(
            "with a fast last block too, to 1 %", "same or better (figure)", outcomes[OURS_LAST].final, full, -MARGIN
        ),
        *tuned,
        greater("beats training the head only", "much lower (figure)", ours.final, outcomes[HEAD].final),
        greater("beats training last block + head", "much lower (figure)", ours.final, outcomes[LAST].final),
    ]


def shorter(name: str, published: str, ratios: Array, limit: float) -> Claim:
    """The median time ratio is below the limit; its interval is that of the order statistics of the rounds."""
    below = median_interval(limit - ratios)
    first, third = np.quantile(ratios, [0.25, 0.75])
    detail = f"median of {len(ratios)} rounds, quartiles {first:.2f} and {third:.2f}, limit {limit:g}"
    return Claim(name, published, f"{np.median(ratios):.3g}", *below, judge(below.low, below.high), detail=detail)
