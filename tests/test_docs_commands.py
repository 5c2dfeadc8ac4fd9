"""Every command shown in README.md and docs/*.md works.

Commands are lines starting with `$ ` in blocks marked `console`; what stands between them is their output, which is not
compared. A block runs in one bash, from the root of the checkout, with `.venv/bin` on PATH. The blocks of a page run
in order and share one temporary MOSAIC_HOME, as they do for a reader. Before a block may stand:

    <!-- no-test: reason -->    it is not run; the reason is printed
    <!-- slow -->               it is run, but not by scripts/test --quick
"""

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
SECONDS_FOR_A_BLOCK = 110
SECONDS_FOR_A_SLOW_BLOCK = 900

FENCE = re.compile(r"\s*(?P<ticks>`{3,}|~{3,})\s*(?P<language>\w*)")
NO_TEST = re.compile(r"<!--\s*no-test:\s*(?P<reason>.*?)\s*-->", re.DOTALL)
SLOW = re.compile(r"<!--\s*slow\s*-->")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    commands: tuple[str, ...]
    slow: bool = False
    no_test: str | None = None

    @property
    def where(self):
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"


def extract(page, text):
    """Find the console blocks of a page that show at least one command."""
    lines = text.splitlines()
    blocks = []
    remarks = ""  # the HTML comments right above
    index = 0
    while index < len(lines):
        fence = FENCE.match(lines[index])
        if not fence:
            remarks = remarks_after(lines[index], remarks)
            index += 1
            continue
        start = index + 1
        end = next((at for at in range(start, len(lines)) if lines[at].strip() == fence["ticks"]), len(lines))
        commands = commands_in(lines[start:end]) if fence["language"] == "console" else ()
        if commands:
            reason = NO_TEST.search(remarks)
            slow = bool(SLOW.search(remarks))
            blocks.append(Block(page, start, commands, slow=slow, no_test=reason and reason["reason"]))
        remarks = ""
        index = end + 1
    return blocks


def remarks_after(line, remarks):
    """Keep comments (of one line or several) and empty lines; any other text ends what is above a block."""
    inside = remarks.count("<!--") > remarks.count("-->")
    if inside or line.lstrip().startswith("<!--"):
        return f"{remarks}{line}\n"
    return remarks if not line.strip() else ""


def commands_in(lines):
    """Join the lines of each command: it goes on after a backslash, with or without a `> ` in front."""
    commands = []
    going_on = False
    for line in (line.strip() for line in lines):
        if going_on:
            commands[-1] += "\n" + line.removeprefix("> ")
        elif line.startswith("$ "):
            commands.append(line.removeprefix("$ "))
        else:
            continue
        going_on = commands[-1].endswith("\\")
    return tuple(commands)


def run(block, home, seconds):
    """Run a block in one bash and give (exit status, output); the command that failed is the last in the output."""
    # `set -v` would show a command after it was read: this shows each before it runs, so that a hang has a name.
    script = "\n".join(f"printf '%s\\n' {quoted('$ ' + command)}\n{command}" for command in block.commands)
    output = home / "output"
    environment = os.environ | {
        "MOSAIC_HOME": str(home / "mosaic"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    # Into a file, not a pipe: what `mosaic up --detach` leaves running may keep its output open.
    with output.open("wb") as stdout:
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = f"none: still running after {seconds} s"
    return status, output.read_text(errors="replace")


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def all_blocks():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [block for page in pages if page.exists() for block in extract(page, page.read_text())]


def as_parameters(blocks):
    slow = [pytest.mark.slow, pytest.mark.timeout(SECONDS_FOR_A_SLOW_BLOCK + 60)]
    # Blocks that start a stack take seconds each, so only the full run has them.
    return [
        pytest.param(block, marks=slow if block.slow or starts_a_stack(block) else [], id=block.where)
        for block in blocks
    ]


def starts_a_stack(block):
    return any("mosaic" in command for command in block.commands)


class Homes:
    """Gives the blocks of one page the same home, and stops what they leave running when the next page starts."""

    def __init__(self, new_folder):
        self._new_folder = new_folder
        self._page = None
        self._folder = None

    def of(self, page):
        if page != self._page:
            self.close()
            self._page, self._folder = page, self._new_folder()
        return self._folder

    def close(self):
        page, folder = self._page, self._folder
        self._page = self._folder = None
        if folder is not None and (folder / "mosaic").exists():
            status, output = run(Block(page, 0, ("mosaic down",)), folder, 60)
            assert status == 0, f"`mosaic down` after {page}: exit status {status}\n{output}"


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    homes = Homes(lambda: tmp_path_factory.mktemp("docs"))
    yield homes
    homes.close()


@pytest.mark.parametrize("block", as_parameters(all_blocks()))
def test_commands_in_the_documentation_work(homes, block, capsys):
    if block.no_test is not None:
        with capsys.disabled():
            print(f"\n{block.where} is not run: {block.no_test}")
        pytest.skip(f"no-test: {block.no_test}")
    status, output = run(block, homes.of(block.page), SECONDS_FOR_A_SLOW_BLOCK if block.slow else SECONDS_FOR_A_BLOCK)
    assert status == 0, f"{block.where}: exit status {status}\n{output}"


SAMPLE = """\
# Sample

```console
$ echo one
one
$ echo two \\
    three
two three
```

```bash
$ echo not a console block
```

<!-- no-test: needs a GPU -->
```console
$ false
```

<!-- slow -->

```console
$ sleep 60
```

<!-- no-test: too
far above -->
Text between the comment and the block.

1. In a list:

   ```console
   $ echo four | tr \\
   > a-z A-Z
   ```

```console
only output
```
"""


def test_extractor_finds_the_blocks_of_a_sample():
    page = Path("sample.md")
    assert extract(page, SAMPLE) == [
        Block(page, 3, ("echo one", "echo two \\\nthree")),
        Block(page, 16, ("false",), no_test="needs a GPU"),
        Block(page, 22, ("sleep 60",), slow=True),
        Block(page, 32, ("echo four | tr \\\na-z A-Z",)),
    ]
    assert extract(page, "no blocks") == []


def test_slow_blocks_are_marked_slow():
    marks = {
        parameter.id: [mark.name for mark in parameter.marks] for parameter in as_parameters(extract(Path("s"), SAMPLE))
    }
    assert marks == {"s:3": [], "s:16": [], "s:22": ["slow", "timeout"], "s:32": []}


def test_block_runs_in_one_shell_in_the_checkout_with_a_home_of_its_own(tmp_path):
    commands = ("here=$PWD", "echo $here", "echo $MOSAIC_HOME", "echo ${PATH%%:*}", "echo 'it'\\''s'")
    status, output = run(Block(Path("s"), 1, commands), tmp_path, 20)
    assert status == 0, output
    shown = [line for line in output.splitlines() if not line.startswith("$ ")]
    assert shown == [str(ROOT), str(tmp_path / "mosaic"), str(BIN), "it's"]


@pytest.mark.parametrize("command", ["false", "false | cat", "no-such-command", "ls /no/such/file"])
def test_failing_command_fails_its_block_and_is_named(tmp_path, command):
    status, output = run(Block(Path("s"), 1, ("echo fine", command, "echo unreached")), tmp_path, 20)
    assert status not in {0, None}
    assert f"$ {command}\n" in output
    assert "unreached" not in output


def test_blocks_of_a_page_share_a_home_and_pages_do_not(tmp_path):
    folders = iter([tmp_path / "first", tmp_path / "second"])
    homes = Homes(lambda: next(folders))
    first = homes.of(Path("a.md"))
    assert homes.of(Path("a.md")) == first
    assert homes.of(Path("b.md")) == tmp_path / "second"


def test_hanging_command_is_killed_and_named(tmp_path):
    status, output = run(Block(Path("s"), 1, ("sleep 600",)), tmp_path, 0.5)
    assert status == "none: still running after 0.5 s"
    assert output == "$ sleep 600\n"
