"""Estimators with scikit-learn's contract, on this house's models and engine.

from koopsim.sklearn import SIMClassifier
SIMClassifier(random_state=0).fit(X, y).predict_proba(Z)
"""

from koopsim.sklearn.equilibria import DEQClassifier, DEQRegressor, MonDEQClassifier
from koopsim.sklearn.sims import SIMClassifier, SIMRegressor

__all__ = ["DEQClassifier", "DEQRegressor", "MonDEQClassifier", "SIMClassifier", "SIMRegressor"]
