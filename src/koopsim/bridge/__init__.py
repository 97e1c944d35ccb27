"""From a trained DEQ to a SIM: observe its iteration, distil where it goes, warm-start its solver."""

from koopsim.bridge.closed_form import ClosedForm, closed_form, compare
from koopsim.bridge.closed_measure import ClosedMeasure, closed_measure, compare_measures
from koopsim.bridge.distill import DistillReport, DistillWarning, distill
from koopsim.bridge.examine import LimitSpectrum, examine
from koopsim.bridge.health import Health
from koopsim.bridge.inner import InnerCell
from koopsim.bridge.jacobian import Linearisation, linearise
from koopsim.bridge.measure_plots import plot_distilled
from koopsim.bridge.measures import MeasureReport, embed, embedding
from koopsim.bridge.observe import Observation, observe
from koopsim.bridge.plots import plot_observation
from koopsim.bridge.settling import Settling, settling
from koopsim.bridge.student import Lessons, Student
from koopsim.bridge.warm_start import WarmStart

__all__ = [
    "ClosedForm",
    "ClosedMeasure",
    "DistillReport",
    "DistillWarning",
    "Health",
    "InnerCell",
    "Lessons",
    "LimitSpectrum",
    "Linearisation",
    "MeasureReport",
    "Observation",
    "Settling",
    "Student",
    "WarmStart",
    "closed_form",
    "closed_measure",
    "compare",
    "compare_measures",
    "distill",
    "embed",
    "embedding",
    "examine",
    "linearise",
    "observe",
    "plot_distilled",
    "plot_observation",
    "settling",
]
