"""Sweeps: files that describe many runs, and drivers that choose runs by earlier results."""

from mosaic_services.sweeps.plan import Driver, Plan, Planned, new_group, read_plan

__all__ = ["Driver", "Plan", "Planned", "new_group", "read_plan"]
