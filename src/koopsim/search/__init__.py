"""Search: random draws and asynchronous halving, stacked inside one device or on a Ray cluster.

space.py  what is drawn      asha.py  who goes on      local.py  one process      ray.py  a cluster
"""

from koopsim.search.asha import ASHA
from koopsim.search.bandwidth import median_bandwidth
from koopsim.search.confirm import confirmed
from koopsim.search.directory import Search, SearchDirectory
from koopsim.search.local import LocalSearch
from koopsim.search.results import best_trial, read_trials
from koopsim.search.space import base_of, space_of
from koopsim.search.trial import Trial
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
