"""Every Python on this machine reads frames that this one writes, and the other way round."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stack import ROOT

from mosaic_bus.frames import FrameReader
from mosaic_worker.frames.ring import FrameWriter

# The reader and the writer as they are, each with its own needs (numpy, pydantic) and without the packages around them.
BOTH_SIDES = """
import sys, types
for name, place in (("mosaic_bus", sys.argv[2]), ("mosaic_worker", sys.argv[3])):
    package = types.ModuleType(name)
    package.__path__ = [place + "/" + name]
    sys.modules[name] = package
from mosaic_bus.frames import FrameReader
from mosaic_worker.frames.ring import FrameWriter
with FrameReader(sys.argv[1] + "/main.ring") as reader:
    frame = reader.latest()
FrameWriter(sys.argv[1], "back").write(frame.pixels[::-1], step=frame.step + 1, last_reward=frame.last_reward)
print("%d.%d" % sys.version_info[:2])
"""
# It may have no numpy: the layout is simple enough to be read without.
BY_HAND = (
    "import mmap, struct, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); "
    "h = struct.unpack_from('=12Q', m); lock, *shape = struct.unpack_from('=4Q', m, 256); "
    "print(m[:8].decode(), h[1], h[11], lock, shape, sum(m[384:384 + 192]))"
)


def runs(python: str | Path, code: str = "") -> bool:
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def find_python(minor: int) -> str:
    """Find a Python that runs: on the PATH (where pyenv puts some that do not), or beside the one of this test."""
    found = [shutil.which(f"python3.{minor}"), *Path(sys.base_prefix).parent.glob(f"3.{minor}.*/bin/python3")]
    usable = [str(each) for each in found if each and runs(each)]
    return usable[0] if usable else pytest.skip(f"Python 3.{minor} is not on this machine")


def with_needs(python: str, place: Path) -> str:
    """Return an interpreter of that version with numpy and pydantic, in a new virtualenv if necessary."""
    if runs(python, "import numpy, pydantic"):
        return python
    own = f"{place}/bin/python"
    pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "pydantic"]
    for command in ([python, "-m", "venv", str(place)], pip):
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip(f"{python} lacks numpy or pydantic, which cannot be installed here: the layout alone was tried")
    return own


@pytest.mark.slow
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_readers_and_writers_of_every_python_that_is_here_understand_each_other(tmp_path, minor):
    python = find_python(minor)
    picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    FrameWriter(tmp_path).write(picture, step=41, last_reward=0.1)
    ring = str(tmp_path / "main.ring")
    said = subprocess.run([python, "-c", BY_HAND, ring], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"MOSAICFL 1 1 2 [8, 8, 3] {int(picture.sum(dtype=int))}"

    parts = [str(ROOT / "bus"), str(ROOT / "workers" / "kit")]
    command = [with_needs(python, tmp_path / "venv"), "-c", BOTH_SIDES, str(tmp_path), *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"3.{minor}\n"), done.stderr
    with FrameReader(tmp_path / "back.ring") as reader:
        frame = reader.latest()
        assert not reader.writer_is_alive
    assert (frame.pixels == picture[::-1]).all()
    assert (frame.step, frame.last_reward) == (42, 0.1)
