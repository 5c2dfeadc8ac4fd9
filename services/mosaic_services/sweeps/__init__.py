"""Sweeps: one file that stands for many runs, and drivers that choose the next run by what the last ones brought."""

from mosaic_services.sweeps.plan import Driver, Plan, Planned, new_group, read_plan

__all__ = ["Driver", "Plan", "Planned", "new_group", "read_plan"]
