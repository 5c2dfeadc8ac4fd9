"""What can be wrong with the input of a report."""

__all__ = ["ReportError"]


class ReportError(Exception):
    """A report cannot be made of a folder: a file is missing, or is not what it should be."""
