"""The folder of one attempt, shared by supervisor, run host and command line: see `layout` for the files in it."""

from mosaic_services.attempt_folder.folder import AttemptFolder, AttemptKey

__all__ = ["AttemptFolder", "AttemptKey"]
