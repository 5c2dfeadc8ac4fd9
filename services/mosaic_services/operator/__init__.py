"""The operator service: plays experiments."""
