"""Shared memory that is too small for frames: a clear error, and no process is killed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from mosaic_worker.errors import FrameError
from mosaic_worker.frames.ring import FrameWriter


def test_no_room_is_a_clear_error_before_anything_is_made(tmp_path, monkeypatch):
    full = os.statvfs_result((4096, 4096, 10, 5, 5, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    writer = FrameWriter(tmp_path)
    with pytest.raises(FrameError, match=r"has 20480 bytes free, and \d+ are needed"):
        writer.write(np.zeros((8, 8, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_room_that_cannot_be_had_after_all_is_a_clear_error_and_nothing_is_left(tmp_path):
    """The file system reports free space but refuses it: here by a limit, elsewhere by a quota."""
    code = (
        "import resource, sys; import numpy as np; from mosaic_worker.frames.ring import FrameWriter; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        "FrameWriter(sys.argv[1]).write(np.zeros((480, 640, 3), np.uint8))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"FrameError: {tmp_path} has no room for 3687168 bytes of frames: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_small_shared_memory_gets_what_fits_and_a_clear_error_for_the_rest():
    """A real file system of 18 MB, if the process may mount one; in the end it reports more space than it has."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not here")
    code = """
import os
import numpy as np
from mosaic_worker.errors import FrameError
from mosaic_worker.frames.ring import FrameWriter
print("ready", flush=True)
writer = FrameWriter("/dev/shm")
for side in (84, 480, 3000):
    try:
        writer.write(np.zeros((side, side, 3), np.uint8))
    except FrameError as error:
        print(error)
        os.statvfs = lambda _: os.statvfs_result((4096, 4096, 10**6, 10**6, 10**6, 0, 0, 0, 0, 255))
print(os.listdir("/dev/shm"), writer.published)
"""
    small = 'mount -t tmpfs -o size=18m tmpfs /dev/shm && exec "$@"'
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", small, "sh"]
    done = subprocess.run([*inside, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if not done.stdout.startswith("ready"):
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()}")
    assert done.returncode == 0, f"it was killed, or: {done.stderr}"
    _, too_large, no_space, left = done.stdout.splitlines()
    assert re.fullmatch(r"/dev/shm has 1\d{7} bytes free, and 2765568 are needed for frames of .*", too_large)
    assert re.fullmatch(r"/dev/shm has no room for \d+ bytes of frames: No space left on device", no_space)
    assert left == "['main.ring'] 1", "what was there goes on"
