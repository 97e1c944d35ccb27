"""The paper's maps, one file each: lift (mu), fourier (psi), limit (U V), readout (nu, h), and the SIMs."""

from koopsim.nn.fourier import RandomFourierFeatures
from koopsim.nn.lift import MLP, TCN, VGG
from koopsim.nn.limit import LimitOperator
from koopsim.nn.readout import Output, StateReadout
from koopsim.nn.sim import SIM, build_sim, count_parameters

__all__ = [
    "MLP",
    "SIM",
    "TCN",
    "VGG",
    "LimitOperator",
    "Output",
    "RandomFourierFeatures",
    "StateReadout",
    "build_sim",
    "count_parameters",
]
