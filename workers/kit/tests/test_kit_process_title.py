"""The process title: the command line and environment that /proc shows to other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from mosaic_worker.process_title import Title, TitleError
title = Title("ROOM")
{}
print(os.getpid(), os.environ["ROOM"][:4], os.environ["AFTER"], flush=True)
sys.stdin.read()
"""


def run(body: str, room: str = "r" * 200) -> tuple[list[str], list[str], str]:
    """Return the command line and environment in /proc, and the line that the process printed."""
    environ = {"PATH": os.environ["PATH"], "ROOM": room, "AFTER": "untouched"}
    command = [sys.executable, "-c", SCRIPT.format(body), "a" * 200]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline()
        seen = [Path(f"/proc/{said.split()[0]}/{name}").read_text() for name in ("cmdline", "environ")]
        process.stdin.close()
    words, variables = (text.rstrip("\0").split("\0") for text in seen)
    return words, [each for each in variables if each], said


def test_title_is_what_others_see():
    words, variables, said = run("title.write_arguments(['worker', '--config', 'a b']); title.write_variable('mine')")
    assert words == ["worker", "--config", "a b"]
    assert "ROOM=mine" in variables
    assert "AFTER=untouched" in variables
    assert "untouched" in said


def test_title_of_a_child_leaves_that_of_the_parent_alone():
    body = "if os.fork():\n    os.wait()\nelse:\n    title.write_arguments(['child']); os._exit(0)"
    words, variables, _ = run(body)
    assert words[0] == sys.executable
    assert f"ROOM={'r' * 200}" in variables


def test_title_written_twice_keeps_nothing_of_the_first():
    words, variables, _ = run("title.write_arguments(['x' * 150]); title.write_arguments(['y'])\n"
                              "title.write_variable('x' * 150); title.write_variable('y')")  # fmt: skip
    assert words == ["y"]
    assert "ROOM=y" in variables


def test_title_too_long_is_refused_by_check_and_cut_by_write():
    body = """
for arguments, value in ((["x" * 5000], ""), ([], "x" * 201)):
    try:
        title.check(arguments, value)
    except TitleError as error:
        assert "do not fit" in str(error)
    else:
        raise SystemExit("it fits")
title.check([], "x" * 199)
title.write_variable("x" * 5000)
"""
    _, variables, _ = run(body)
    assert f"ROOM={'x' * 200}" in variables
    assert "AFTER=untouched" in variables


def test_title_needs_the_variable_that_reserves_its_space():
    code = "from mosaic_worker.process_title import Title; Title('NO_SUCH_ROOM')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "NO_SUCH_ROOM is not in the environment" in done.stderr


@pytest.mark.parametrize("room", ["", "r"])
def test_title_is_cut_to_the_reserved_space(room: str):
    _, variables, _ = run("title.write_variable('mine')", room)
    assert f"ROOM={'mine'[: len(room)]}" in variables
