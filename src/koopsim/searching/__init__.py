"""Search: random draws and asynchronous halving, stacked inside one device or on a Ray cluster.

space.py  what is drawn      asha.py  who goes on      local.py  one process      ray.py  a cluster
"""

from koopsim.searching.asha import ASHA
from koopsim.searching.bandwidth import median_bandwidth
from koopsim.searching.confirm import confirmed
from koopsim.searching.directory import Search, SearchDirectory
from koopsim.searching.local import LocalSearch
from koopsim.searching.results import best_trial, read_trials
from koopsim.searching.space import base_of, space_of
from koopsim.searching.trial import Trial
from koopsim.spaces import Choice, Listed, LogUniform, Median, SearchSpace, Uniform

__all__ = [
    "ASHA",
    "Choice",
    "Listed",
    "LocalSearch",
    "LogUniform",
    "Median",
    "Search",
    "SearchDirectory",
    "SearchSpace",
    "Trial",
    "Uniform",
    "base_of",
    "best_trial",
    "confirmed",
    "median_bandwidth",
    "read_trials",
    "space_of",
]
