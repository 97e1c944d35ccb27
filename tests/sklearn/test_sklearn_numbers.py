"""What estimators say after a few epochs, number by number: see kept_numbers.py."""

import numpy as np
import pytest
from kept_numbers import same

from koopsim.sklearn import DEQClassifier, DEQRegressor, MonDEQClassifier, SIMClassifier, SIMRegressor

rows = np.random.default_rng(0).normal(size=(120, 4))
label = np.where(rows[:, 0] + rows[:, 1] ** 2 > 0.5, "yes", "no")
value = rows[:, 0] - 2 * rows[:, 1] * rows[:, 2]
SHORT = {"epochs": 3, "random_state": 0}
MODELS = {
    "single": SIMClassifier(**SHORT), "two": SIMClassifier("two", **SHORT), "rff": SIMClassifier("rff", **SHORT),
    "weighted": SIMClassifier(class_weight="balanced", batch_size=16, weight_decay=0.1, **SHORT),
    "numbers": SIMRegressor(**SHORT), "numbers two": SIMRegressor("two", learning_rate=0.02, **SHORT),
    "deq": DEQClassifier(8, **SHORT), "deq numbers": DEQRegressor(8, **SHORT), "mondeq": MonDEQClassifier(8, **SHORT),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::koopsim.implicit.info.UnconvergedWarning")
def test_numbers_of_estimators(name):
    model = MODELS[name]
    y = value if "numbers" in name else label
    model.fit(rows, y, sample_weight=np.linspace(0.5, 1.5, len(rows)) if name == "weighted" else None)
    said = model.predict(rows[:6]) if "numbers" in name else model.predict_proba(rows[:6])
    found = [said, model.score(rows, y), model.transform(rows[:3]), getattr(model, "n_iter_", None)]
    found += [getattr(model, key, None) for key in ("loss_curve_", "validation_scores_", "loss_", "best_loss_")]
    same(f"sklearn/{name}", found, rel=1e-3, near=1e-5)
