"""How commands print: tables, JSON, curves, figures, single keys."""
