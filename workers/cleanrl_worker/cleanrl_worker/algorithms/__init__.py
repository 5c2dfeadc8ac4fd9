"""Algorithms of our own, in the style of CleanRL: one file tells all."""
