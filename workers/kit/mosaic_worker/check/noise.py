"""Makes a process print, as a chatty library would, once its run has begun.

A `sitecustomize` module on PYTHONPATH starts a thread inside the worker that waits for the first line of the journal
and then prints in three ways: through Python, to the descriptor as a C library does, and from a child process.
"""

import os
from pathlib import Path

__all__ = ["NOISE", "write_noisy_sitecustomize"]

NOISE = "noise-of-a-library"

_SOURCE = f"""
import os, subprocess, sys, threading, time
journal = os.environ.pop("MOSAIC_CHECK_JOURNAL", None)
def make_noise():
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and os.path.getsize(journal) == 0:
        time.sleep(0.001)
    os.write(1, b"{NOISE} from C\\n")
    print("{NOISE} from Python", flush=True)
    subprocess.run([sys.executable, "-S", "-c", "print('{NOISE} from a child')"])
if journal is not None:
    threading.Thread(target=make_noise, daemon=True).start()
"""


def write_noisy_sitecustomize(folder: Path, journal: Path) -> dict[str, str]:
    """Write the module and return the environment that makes a process use it."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SOURCE, encoding="utf-8")
    path = os.pathsep.join(part for part in (str(folder), os.environ.get("PYTHONPATH", "")) if part)
    return {"PYTHONPATH": path, "MOSAIC_CHECK_JOURNAL": str(journal)}
