"""From a trained DEQ to a SIM: observe its iteration, distil its equilibria, warm-start its solver."""

from koopsim.bridge.closed_form import ClosedForm, closed_form, compare
from koopsim.bridge.distill import DistillReport, distill
from koopsim.bridge.examine import LimitSpectrum, examine
from koopsim.bridge.jacobian import Linearisation, linearise
from koopsim.bridge.observe import Observation, observe
from koopsim.bridge.plots import plot_observation
from koopsim.bridge.warm_start import WarmStart

__all__ = [
    "ClosedForm",
    "DistillReport",
    "LimitSpectrum",
    "Linearisation",
    "Observation",
    "WarmStart",
    "closed_form",
    "compare",
    "distill",
    "examine",
    "linearise",
    "observe",
    "plot_observation",
]
