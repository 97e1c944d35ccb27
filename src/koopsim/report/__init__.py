"""Tables and figures, read from run directories and kept result files only."""

from koopsim.report.classification import classification_table, learning_curves
from koopsim.report.collect import collect
from koopsim.report.copy_memory import copy_memory_table, figure3
from koopsim.report.tables import Table

__all__ = ["Table", "classification_table", "collect", "copy_memory_table", "figure3", "learning_curves"]
