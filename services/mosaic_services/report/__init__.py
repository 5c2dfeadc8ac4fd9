"""The report of an experiment: numbers, tables, figures and pages from experiment.json and episodes.jsonl."""

from mosaic_services.report.errors import ReportError
from mosaic_services.report.source import Training
from mosaic_services.report.terminal import terminal_lines
from mosaic_services.report.writing import Report, write_report

__all__ = ["Report", "ReportError", "Training", "terminal_lines", "write_report"]
