"""Experiments: files that say which operators play which episodes, and what is made of them."""
