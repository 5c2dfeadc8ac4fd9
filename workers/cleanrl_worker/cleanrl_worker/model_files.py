"""Files of trained models: finds the one that a path or folder means, without reading it."""

from pathlib import Path

from mosaic_worker.errors import ConfigError

__all__ = ["STEP", "SUFFIX", "find_model"]

SUFFIX = ".cleanrl_model"
STEP = "step-"
"""Checkpoints of our ppo are named `step-N.cleanrl_model`."""


def find_model(path: Path, field: str) -> Path:
    """Return the file or, in a folder such as a run's, the newest model; ConfigError names `field`."""
    if path.is_dir():
        return _newest(path, field)
    if not path.is_file():
        raise ConfigError(f"{field}: {str(path)!r}: no such file")
    return path


def _newest(folder: Path, field: str) -> Path:
    """Return the checkpoint with the highest step, of the last attempt that saved any; else the youngest file.

    Steps are reliable; modification times are not, since copying a folder changes them.
    """
    files = list(folder.rglob(f"*{SUFFIX}"))
    if not files:
        raise ConfigError(f"{field}: there is no {SUFFIX} file in {str(folder)!r}")
    steps = {path: int(number) for path in files if (number := path.stem.removeprefix(STEP)).isdecimal()}
    if not steps:
        return max(files, key=lambda path: path.stat().st_mtime_ns)

    def attempt(checkpoints: Path) -> tuple[int, int]:
        number = checkpoints.parent.name if checkpoints.parent.parent == folder else ""
        return int(number) if number.isdecimal() else 0, checkpoints.stat().st_mtime_ns

    last = max({path.parent for path in steps}, key=attempt)
    return max((path for path in steps if path.parent == last), key=steps.__getitem__)
