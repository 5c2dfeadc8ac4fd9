"""Settings: which source wins, what is refused, and that each value reaches the service it is for."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from mosaic_cli import Cli

from mosaic_bus import Bus
from mosaic_bus.commands import Info
from mosaic_services.home import StackHome
from mosaic_services.settings import Settings, SettingsError
from mosaic_services.settings.example import render
from mosaic_services.settings.model import leaves
from mosaic_services.settings.sources import load, variable

EXAMPLE = Path(__file__).parents[2] / "configs" / "mosaic.toml"
LOST = "scheduler.lost_after_s"


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("MOSAIC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    return tmp_path


def test_flags_win_over_variables_over_the_file_over_defaults(home, monkeypatch):
    assert (load().settings, load().origins[LOST]) == (Settings(home=str(home)), "default")
    (home / "mosaic.toml").write_text("[scheduler]\nlost_after_s = 10\nkeep_free_after_s = 11\n")
    assert (load().settings.scheduler.lost_after_s, load().origins[LOST]) == (10, f"file {home / 'mosaic.toml'}")
    monkeypatch.setenv("MOSAIC_SCHEDULER__LOST_AFTER_S", "20")
    assert (load().settings.scheduler.lost_after_s, load().origins[LOST]) == (20, "MOSAIC_SCHEDULER__LOST_AFTER_S")
    loaded = load({LOST: "30", "bus": None})
    assert (loaded.settings.scheduler.lost_after_s, loaded.origins[LOST], loaded.origins["bus"]) == (
        30,
        "flag",
        "default",
    )
    assert loaded.settings.scheduler.keep_free_after_s == 11, "the other values of the section stay"


def test_file_named_by_a_variable_is_read_instead_and_may_name_the_home(home, monkeypatch, tmp_path_factory):
    (home / "mosaic.toml").write_text('bus = "tcp://127.0.0.1:1"\n')
    other = tmp_path_factory.mktemp("elsewhere") / "mine.toml"
    other.write_text('home = "/srv/mosaic"\n')
    monkeypatch.setenv("MOSAIC_CONFIG", str(other))
    monkeypatch.delenv("MOSAIC_HOME")
    assert (load().settings.home, load().settings.bus) == ("/srv/mosaic", "")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[scheduler]\nlost_aftr_s = 3\n", "scheduler.lost_after_s"),
        ("[schedular]\nlost_after_s = 3\n", "scheduler.lost_after_s"),
        ("lost_after_s = 3\n", "scheduler.lost_after_s"),
        ("[scheduler]\nlost_after_s = -3\n", "scheduler.lost_after_s"),
        ("[scheduler]\nlost_after_s = 'soon'\n", "scheduler.lost_after_s"),
        ("[telemetry]\nqueries_at_once = 4.5\n", "telemetry.queries_at_once"),
        ("scheduler = 3\n", "scheduler"),
        ("[scheduler\n", "line 1"),
        ('home = "/tmp"\n', "MOSAIC_HOME"),
    ],
)
def test_bad_file_is_refused_with_its_name_and_what_was_meant(home, text, named):
    (home / "mosaic.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(home / "mosaic.toml") in caught.value.message
    assert named in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("MOSAIC_HOEM", "/tmp", "MOSAIC_HOME"),
        ("MOSAIC_SCHEDULER__LOST_AFTR_S", "3", "scheduler.lost_after_s"),
        ("MOSAIC_SHEDULER__LOST_AFTER_S", "3", "MOSAIC_SCHEDULER__LOST_AFTER_S"),
        ("MOSAIC_SCHEDULER__LOST_AFTER_S", "soon", "scheduler.lost_after_s"),
        ("MOSAIC_SCHEDULER", "soon", "MOSAIC_SCHEDULER__LOST_AFTER_S"),
        ("MOSAIC_CONFIG", "/nowhere/mosaic.toml", "MOSAIC_CONFIG"),
    ],
)
def test_bad_variable_is_refused(home, monkeypatch, name, value, meant):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert meant in f"{caught.value.message} {caught.value.hint}"


def test_variables_of_workers_are_left_alone(home, monkeypatch):
    for name in ("MOSAIC_FASTLANE_MODE", "MOSAIC_UPSTREAM", "MOSAIC_HEARTBEAT_S", "MOSAIC_RUN_DIR", "MOSAIC_SEED"):
        monkeypatch.setenv(name, "x")
    assert load().settings == Settings(home=str(home))


def test_example_file_is_true_to_the_model():
    assert EXAMPLE.read_text() == render(), "run: mosaic config defaults > configs/mosaic.toml"
    with_values = "".join(
        line.removeprefix("# ") if " = " in line else line for line in EXAMPLE.read_text().splitlines(keepends=True)
    )
    assert Settings.model_validate(tomllib.loads(with_values)) == Settings()


def test_every_setting_has_a_description():
    assert [leaf.key for leaf in leaves(Settings()) if not leaf.description] == []
    assert variable(LOST) == "MOSAIC_SCHEDULER__LOST_AFTER_S"


def test_config_show_says_where_each_value_came_from(home):
    (home / "mosaic.toml").write_text("[cli]\nconnect_timeout_s = 4\n")
    cli = Cli(home)
    cli.env["MOSAIC_CACHE"] = "/tmp/cache"
    shown = cli.json("config", "show", "--bus", "tcp://127.0.0.1:5")
    assert shown["file"] == str(home / "mosaic.toml")
    assert shown["settings"]["bus"] == {"value": "tcp://127.0.0.1:5", "from": "flag"}
    assert shown["settings"]["cache"] == {"value": "/tmp/cache", "from": "MOSAIC_CACHE"}
    assert shown["settings"]["cli.connect_timeout_s"] == {"value": 4.0, "from": f"file {home / 'mosaic.toml'}"}
    assert shown["settings"][LOST] == {"value": 300.0, "from": "default"}
    assert "cli.connect_timeout_s" in cli("config", "show").stdout


def test_file_variable_and_flag_reach_the_services(home):
    (home / "mosaic.toml").write_text("[scheduler]\nlost_after_s = 10\n[services]\nheartbeat_s = 0.5\n")
    cli = Cli(home)
    try:
        cli("up", "--detach", "--set", "scheduler.lost_after_s=40")
        with Bus(StackHome.find(home).address()) as bus:
            assert bus.request("scheduler", Info()).details["lost_after_s"] == 40
        cli("down")
        cli("up", "--detach")
        with Bus(StackHome.find(home).address()) as bus:
            assert bus.request("scheduler", Info()).details["lost_after_s"] == 10
        assert cli("up", "--set", "scheduler.lost_aftr_s=1", code=2).stdout == ""
    finally:
        cli("down")
