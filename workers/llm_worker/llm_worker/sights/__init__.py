"""Observations in words. Each module describes one family of environments; `describer_of` chooses."""

from llm_worker.sights.base import Describer, Scene
from llm_worker.sights.choosing import describer_of

__all__ = ["Describer", "Scene", "describer_of"]
