"""Modules of the user's own, such as one that registers an environment."""

from importlib import import_module

__all__ = ["UserModuleError", "import_user_module"]


class UserModuleError(ValueError):
    """A module of the user's own cannot be imported."""


def import_user_module(name: str) -> None:
    """Import a module; raise UserModuleError that says what to do if it is not found."""
    try:
        import_module(name)
    except (Exception, SystemExit) as error:  # it is not ours: anything may go wrong in it
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            hint = "; name its folder in `pythonpath` of the run, or in MOSAIC_PYTHONPATH where the host is started"
        why = f"{type(error).__name__}: {error}"
        raise UserModuleError(f"module {name!r} cannot be imported: {why}{hint}") from error
