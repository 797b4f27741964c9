"""Agreement of models with each other and with people on the labels of images (thesis 6.2, Tables 6.5–6.9)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """A mean and a population standard deviation."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.std:.2g}"


@dataclass(frozen=True)
class Agreement:
    """Models against references (people), image by image; shares are of all images.

    ``agree`` and ``references_agree`` are (N,) booleans. With them every image has a type (Table 6.5):

        ======================  ===================  =====================================
        \\                       models disagree      models agree
        ======================  ===================  =====================================
        references disagree     B: as uncertain      C: more certain than people
        references agree        A: misclassified     B, or ``wrong`` if their labels differ
        ======================  ===================  =====================================
    """

    agree: Tensor
    references_agree: Tensor
    wrong: Tensor
    misclassified_per_model: Spread
    misclassified_across_models: float
    pair_disagreement: Spread
    disagreement: float
    reference_pair_disagreement: Spread

    @property
    def types(self) -> list[str]:
        """ "A", "B" or "C" for each image, or "wrong": models agree, people agree, on different labels (footnote 6)."""
        letters = []
        for models, people, wrong in zip(self.agree, self.references_agree, self.wrong, strict=True):
            same = bool(models) == bool(people)
            letters.append("wrong" if wrong else "B" if same else "A" if people else "C")
        return letters

    def share(self, kind: str) -> float:
        """The share of images of one type."""
        if kind not in ("A", "B", "C", "wrong"):
            raise ValueError(f"types are 'A', 'B', 'C' and 'wrong', not {kind!r}")
        return self.types.count(kind) / len(self.agree)

    def cells(self) -> dict[str, Tensor]:
        """Masks of the rows of Table 6.8."""
        models, people = self.agree, self.references_agree
        return {
            "models disagree, references agree": ~models & people,
            "models disagree, references disagree": ~models & ~people,
            "models agree, references agree": models & people,
            "models agree, references disagree": models & ~people,
        }


def agreement(predictions: Tensor, references: Tensor) -> Agreement:
    """Compare the labels of M models, (M, N), with those of H people, (H, N) or (N,) for one label each.

    An image counts as misclassified by a model if all references agree on another label, and
    "across models" if any model misclassifies it (Table 6.6).
    """
    models, people = _labels(predictions, "predictions"), _labels(references, "references")
    if models.shape[1] != people.shape[1]:
        raise ValueError(f"{models.shape[1]} predictions for {people.shape[1]} reference labels per person")
    agree, people_agree = (_unanimous(x) for x in (models, people))
    missed = (models != people[0]) & people_agree
    rates = missed.double().mean(1)
    return Agreement(
        agree=agree,
        references_agree=people_agree,
        wrong=agree & people_agree & (models[0] != people[0]),
        misclassified_per_model=_spread(rates),
        misclassified_across_models=float(missed.any(0).double().mean()),
        pair_disagreement=_pairs(models),
        disagreement=float((~agree).double().mean()),
        reference_pair_disagreement=_pairs(people),
    )


def max_softmax(probabilities: Tensor, found: Agreement) -> dict[str, Spread]:
    """The largest probability, over all models and images of each cell of Table 6.8; NaN for an empty cell.

    Args:
        probabilities: (M, N, C) of the models that were compared.
        found: the result of :func:`agreement` for their labels.
    """
    if probabilities.ndim != 3 or probabilities.shape[1] != len(found.agree):
        raise ValueError(f"probabilities must be (M, {len(found.agree)}, C), got {tuple(probabilities.shape)}")
    largest = probabilities.max(-1).values.double()
    rows = {}
    for name, mask in found.cells().items():
        rows[name] = _spread(largest[:, mask])
    return rows


def certainty(labels: Tensor) -> Tensor:
    """(N,): the share of voters, (V, N), that chose the most frequent label of each image."""
    votes = _labels(labels, "labels")
    same = votes[:, None] == votes[None]
    return same.sum(1).amax(0).double() / len(votes)


def certainty_by_reference(predictions: Tensor, references: Tensor) -> dict[float, Spread]:
    """Certainty of the models on the images on which people are 100 %, 90 %, … certain (Table 6.9)."""
    models, people = certainty(predictions), certainty(references)
    if models.shape != people.shape:
        raise ValueError(f"{len(models)} images were predicted and {len(people)} labelled by people")
    found = {}
    for level in torch.unique(people).flip(0):
        found[float(level)] = _spread(models[people == level])
    return found


def _unanimous(labels: Tensor) -> Tensor:
    """(N,): whether all voters give the same label."""
    return (labels == labels[0]).all(0)


def _pairs(labels: Tensor) -> Spread:
    """Share of images on which two voters differ, over all pairs."""
    rates = [float((labels[i] != labels[j]).double().mean()) for i, j in combinations(range(len(labels)), 2)]
    return _spread(torch.tensor(rates or [0.0], dtype=torch.float64))


def _spread(values: Tensor) -> Spread:
    """NaN if there are no values."""
    if not values.numel():
        return Spread(torch.nan, torch.nan)
    return Spread(float(values.mean()), float(values.std(correction=0)))


def _labels(labels: Tensor, what: str) -> Tensor:
    found = torch.as_tensor(labels)
    found = found[None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.numel():
        raise ValueError(f"{what} must be (voters, images) labels and not empty, got {tuple(found.shape)}")
    if found.is_floating_point():
        raise TypeError(f"{what} must be whole numbers, the labels themselves; take the arg max of probabilities first")
    return found
