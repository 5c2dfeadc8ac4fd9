"""Calls a function when a module has been imported, so that a library can be patched before it is first used."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from mosaic_worker.stdout import note

__all__ = ["AfterImport"]


class AfterImport:
    """A finder for the head of `sys.meta_path` that calls one function per module, once, after its import."""

    def __init__(self, functions: dict[str, Callable[[ModuleType], None]]) -> None:
        """Call each function with the module of its name."""
        self._functions = functions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the module and extend its loader; None for a module without a function."""
        function = self._functions.pop(name, None)
        if function is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    _extend(spec.loader, function)
                return spec
        self._functions[name] = function  # not installed; the program may try again with another path
        return None


def _extend(loader: Any, function: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        try:
            function(module)
        except Exception as error:
            note(f"{module.__name__} is not hooked: {type(error).__name__}: {error}")

    loader.exec_module = exec_module
