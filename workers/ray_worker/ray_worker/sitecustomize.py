"""What a process does before RLlib works in it: an actor of Ray calls `prepare`, the driver `keep_out_of_home`.

`prepare` is called by Ray's own hook (`worker_process_setup_hook`): machines of an existing cluster do not have the
variables of the worker's profile.
"""

import os
from pathlib import Path

__all__ = ["HOOK", "keep_out_of_home", "prepare"]

HOOK = "ray_worker.sitecustomize.prepare"
_QUIET = {
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "MKL_CBWR": "AVX2,STRICT",
}


def prepare() -> None:
    """Let pygame draw without a screen, and torch compute with one thread unless OMP_NUM_THREADS says otherwise."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import torch  # noqa: PLC0415 - it reads the variables above

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def keep_out_of_home(folder: Path) -> None:
    """Let RLlib make its folder of results in the run's folder; it has no setting for that without Ray Tune."""
    from ray.tune.trainable import trainable  # noqa: PLC0415 - takes seconds

    trainable.DEFAULT_STORAGE_PATH = str(folder)
