"""Tables, figures and the page, read from run directories and kept result files only."""

from koopsim.report.build import Report, build_report
from koopsim.report.classification import classification_table, learning_curves
from koopsim.report.collect import Findings, collect, find
from koopsim.report.copy_memory import copy_memory_table, figure4
from koopsim.report.pictures import image_table
from koopsim.report.tables import Table

__all__ = [
    "Findings", "Report", "Table", "build_report", "classification_table", "collect", "copy_memory_table", "figure4",
    "find", "image_table", "learning_curves",
]  # fmt: skip
