"""What a shell offers after Tab: commands, options, and names from the stack."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mosaic_cli import Cli

from mosaic_services.cli.main import COMMANDS


@pytest.fixture(scope="module")
def bash_completion(tmp_path_factory) -> str:
    """The script that bash reads to complete our commands."""
    show = [Path(sys.executable).with_name("mosaic"), "--show-completion", "bash"]
    env = Cli(tmp_path_factory.mktemp("completion")).env
    return subprocess.run(show, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["runs", "--"], {"--state", "--group", "--json", "--home", "--help"}),
        (["workers", ""], {"list", "install", "describe", "check"}),
        (["sweep", "show", "--"], {"--limit", "--json"}),
        (["ru"], {"runs"}),
    ],
)
def test_bash_completes_options_and_commands_of_commands(tmp_path, bash_completion, words, offered):
    mosaic = Path(sys.executable).with_name("mosaic")
    cli = Cli(tmp_path)
    line = f"COMP_WORDS=({shlex.join(['mosaic', *words])}) COMP_CWORD={len(words)}\n"
    ask = f"{bash_completion}\n{line}_mosaic_completion {shlex.quote(str(mosaic))}\nprintf '%s\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", ask], env=cli.env, capture_output=True, text=True, check=True)
    assert offered <= set(done.stdout.split()), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_options(tmp_path, shell):
    asked = {"_MOSAIC_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "mosaic runs --"}
    env = {**Cli(tmp_path).env, **asked, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [Path(sys.executable).with_name("mosaic")], env=env, capture_output=True, text=True, check=False
    )
    assert "--state" in done.stdout


def offered_by(cli: Cli, line: str) -> list[str]:
    """What fish would show for a line."""
    asked = {"_MOSAIC_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    env = {**cli.env, **asked, "_TYPER_COMPLETE_ARGS": line}
    mosaic = Path(sys.executable).with_name("mosaic")
    done = subprocess.run([mosaic], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_names_of_runs_groups_hosts_metrics_and_workers_are_offered(tmp_path, tmp_path_factory):
    cli = Cli(tmp_path)
    try:
        cli("up", "--detach", "--host", "desk")
        cli("submit", "--worker", "baseline", "name=look-here", "group=grids", "episodes=2", "--wait")
        assert offered_by(cli, "mosaic show lo") == ["look-here"]
        assert "look-here" in offered_by(cli, "mosaic submit --after ")
        assert offered_by(cli, "mosaic cancel --group gr") == ["grids"]
        assert offered_by(cli, "mosaic drain ") == ["desk"]
        assert "episode_return" in offered_by(cli, "mosaic series look-here ")
        assert offered_by(cli, "mosaic submit --worker base") == ["baseline"]
        elsewhere = Cli(tmp_path_factory.mktemp("elsewhere"))
        assert offered_by(elsewhere, f"mosaic show --home {tmp_path} lo") == ["look-here"]
        assert offered_by(elsewhere, "mosaic show lo") == [], "no stack: nothing, and no error in the line"
    finally:
        cli("down")


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.below])
def test_help_names_what_is_below_each_group(tmp_path, name):
    listed = Cli(tmp_path)(name, "--help").stdout.partition("Commands")[2]
    found = [line.split()[1] for line in listed.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert tuple(found) == COMMANDS[name].below
