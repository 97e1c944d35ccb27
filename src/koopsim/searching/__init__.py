"""Search: random draws and asynchronous halving, stacked inside one device or on a Ray cluster.

space.py  what is drawn      asha.py  who goes on      local.py  one process      ray.py  a cluster
"""

from koopsim.spaces import Choice, Listed, LogUniform, Median, SearchSpace, Uniform

__all__ = ["Choice", "Listed", "LogUniform", "Median", "SearchSpace", "Uniform"]
