"""`mosaic compare`: runs or groups side by side, with their seeds folded."""
