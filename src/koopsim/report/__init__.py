"""Tables and figures, read from run directories and kept result files only."""

from koopsim.report.collect import collect
from koopsim.report.figures import figure3
from koopsim.report.tables import Table, copy_memory_table

__all__ = ["Table", "collect", "copy_memory_table", "figure3"]
