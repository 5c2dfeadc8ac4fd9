"""Comparing runs: settings with their seeds folded, scores with intervals, mean curves."""
