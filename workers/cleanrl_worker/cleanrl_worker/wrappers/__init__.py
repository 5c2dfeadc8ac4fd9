"""Environments that change while an agent learns in them."""
