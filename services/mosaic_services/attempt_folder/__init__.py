"""The folder of one attempt, shared by supervisor, run host and command line. `layout` lists its files."""

from mosaic_services.attempt_folder.folder import AttemptFolder, AttemptKey

__all__ = ["AttemptFolder", "AttemptKey"]
