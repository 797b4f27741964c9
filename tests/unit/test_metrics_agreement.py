"""Agreement of models and people on a hand-made set of images (thesis Tables 6.5–6.9)."""

import math

import pytest
import torch

from holonom.metrics import agreement, certainty, certainty_by_reference, max_softmax

#            image:   0  1  2  3  4
PEOPLE = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 9, 5]])
MODELS = torch.tensor([[1, 2, 8, 4, 5], [1, 7, 8, 4, 6], [1, 2, 8, 4, 5]])
# 0: all agree, rightly. 1: models disagree, people do not. 2: both agree, differently.
# 3: people disagree, models do not. 4: both disagree.


def test_types():
    found = agreement(MODELS, PEOPLE)
    assert found.types == ["B", "A", "wrong", "C", "B"]
    assert {kind: found.share(kind) for kind in ("A", "B", "C", "wrong")} == {
        "A": 0.2,
        "B": 0.4,
        "C": 0.2,
        "wrong": 0.2,
    }


def test_misclassification_and_disagreement():
    found = agreement(MODELS, PEOPLE)
    # Models 0 and 2 miss image 2, model 1 misses 1 and 2; only images 0–2 have an agreed label.
    rates = torch.tensor([0.2, 0.4, 0.2])
    assert found.misclassified_per_model.mean == pytest.approx(float(rates.mean()))
    assert found.misclassified_per_model.std == pytest.approx(float(rates.std(correction=0)))
    assert found.misclassified_across_models == pytest.approx(0.4)
    assert found.disagreement == pytest.approx(0.4)
    assert found.pair_disagreement.mean == pytest.approx((0.4 + 0.0 + 0.4) / 3)
    assert found.reference_pair_disagreement.mean == pytest.approx((0.2 + 0.2 + 0.4) / 3)
    assert str(found.misclassified_per_model) == "0.267 ± 0.094"


def test_one_label_per_image_is_a_person_who_agrees():
    found = agreement(MODELS, PEOPLE[0])
    assert found.references_agree.all()
    assert found.share("C") == 0
    assert found.reference_pair_disagreement.mean == 0


def test_softmax_by_cell():
    p = torch.full((3, 5, 10), 0.01)
    p[..., 0] = torch.tensor([0.9, 0.5, 0.8, 0.7, 0.6])[None] + torch.tensor([0.0, 0.05, -0.05])[:, None]
    rows = max_softmax(p, agreement(MODELS, PEOPLE))
    assert list(rows) == [
        "models disagree, references agree",
        "models disagree, references disagree",
        "models agree, references agree",
        "models agree, references disagree",
    ]
    assert [row.mean for row in rows.values()] == pytest.approx([0.5, 0.6, 0.85, 0.7], abs=1e-6)
    assert rows["models disagree, references agree"].std == pytest.approx(math.sqrt(2 * 0.05**2 / 3), rel=1e-4)
    nobody = max_softmax(p, agreement(MODELS, PEOPLE[0]))
    assert math.isnan(nobody["models agree, references disagree"].mean)


def test_certainty_is_the_share_of_the_majority():
    votes = torch.tensor([[1, 1, 3], [1, 2, 3], [1, 2, 4], [1, 1, 5], [1, 2, 6]])
    assert certainty(votes).tolist() == pytest.approx([1.0, 0.6, 0.4])


def test_certainty_of_models_where_people_are_certain():
    found = certainty_by_reference(MODELS, PEOPLE)
    assert list(found) == pytest.approx([1.0, 2 / 3])
    models = certainty(MODELS)
    assert found[1.0].mean == pytest.approx(float(models[:3].mean()))
    assert found[list(found)[1]].mean == pytest.approx(float(models[3:].mean()))


@pytest.mark.parametrize(
    ("models", "people", "error", "message"),
    [
        (MODELS[:, :4], PEOPLE, ValueError, "4 predictions for 5"),
        (MODELS.float(), PEOPLE, TypeError, "arg max"),
        (MODELS[None], PEOPLE, ValueError, "voters, images"),
        (MODELS[:0], PEOPLE, ValueError, "not empty"),
    ],
)
def test_bad_labels_are_refused(models, people, error, message):
    with pytest.raises(error, match=message):
        agreement(models, people)


def test_bad_queries_are_refused():
    found = agreement(MODELS, PEOPLE)
    with pytest.raises(ValueError, match="types are"):
        found.share("D")
    with pytest.raises(ValueError, match="probabilities must be"):
        max_softmax(torch.zeros(3, 4, 10), found)
    with pytest.raises(ValueError, match="images were predicted"):
        certainty_by_reference(MODELS[:, :3], PEOPLE)
