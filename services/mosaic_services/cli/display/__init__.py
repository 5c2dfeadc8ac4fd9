"""Terminal output and input: tables, JSON, plots, figures, single keys."""
