"""Frame settings come from the config or environment variables; invalid ones are refused by name."""

import pytest

from mosaic_worker.config import parse_config
from mosaic_worker.errors import ConfigError
from mosaic_worker.frames.settings import FastLaneSettings, FrameConfig, RecordSettings


def config(**fields):
    return parse_config(FrameConfig, {"run_id": "r", **fields}, {})


def test_nothing_is_on_by_default():
    assert config().fastlane_settings({}).mode == "off"
    assert not config().record_settings({}).is_on
    assert FastLaneSettings.from_environ({}) == FastLaneSettings()


def test_settings_are_read_from_the_environment():
    environ = {
        "MOSAIC_FASTLANE_MODE": "grid",
        "MOSAIC_FASTLANE_SLOT": "3",
        "MOSAIC_FASTLANE_GRID_LIMIT": "9",
        "MOSAIC_FASTLANE_INTERVAL_MS": "50",
        "MOSAIC_FASTLANE_MAX_DIM": "128",
    }
    expected = FastLaneSettings(mode="grid", slot=3, grid_limit=9, interval_ms=50, max_dim=128)
    assert FastLaneSettings.from_environ(environ) == expected


def test_variables_tell_another_process_what_the_config_says():
    given = config(fastlane_video_mode="grid", fastlane_max_dim=100, record="every=5,worst")
    variables = given.frame_variables({"MOSAIC_FASTLANE_SLOT": "2"})
    assert FastLaneSettings.from_environ(variables) == FastLaneSettings(mode="grid", slot=2, max_dim=100)
    assert RecordSettings.from_environ(variables) == RecordSettings(every=5, worst=True)


def test_the_config_counts_more_than_the_environment():
    environ = {"MOSAIC_FASTLANE_MODE": "grid", "MOSAIC_FASTLANE_SLOT": "2", "MOSAIC_RECORD": "worst"}
    given = config(fastlane_video_mode="single", fastlane_max_dim=100, record="best")
    settings = given.fastlane_settings(environ)
    assert (settings.mode, settings.slot, settings.max_dim) == ("single", 2, 100)
    assert given.record_settings(environ) == RecordSettings(best=True)
    assert config().record_settings(environ) == RecordSettings(worst=True)
    assert not config(record="").record_settings(environ).is_on


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MOSAIC_FASTLANE_MODE", "singel", "input should be 'single', 'grid' or 'off'; did you mean 'single'?"),
        ("MOSAIC_FASTLANE_SLOT", "-1", "greater than or equal to 0"),
        ("MOSAIC_FASTLANE_GRID_LIMIT", "0", "greater than or equal to 1"),
        ("MOSAIC_FASTLANE_GRID_LIMIT", "65", "less than or equal to 64"),
        ("MOSAIC_FASTLANE_INTERVAL_MS", "often", "valid integer"),
        ("MOSAIC_FASTLANE_MAX_DIM", "3", "greater than or equal to 16"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(name, value, allowed):
    with pytest.raises(ConfigError) as refused:
        FastLaneSettings.from_environ({name: value})
    (problem,) = refused.value.problems
    assert problem.startswith(f"{name}: {value!r} is not allowed: ")
    assert allowed in problem


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", RecordSettings()),
        ("every=50", RecordSettings(every=50)),
        ("best", RecordSettings(best=True)),
        (" worst , every=1,best ", RecordSettings(every=1, best=True, worst=True)),
    ],
)
def test_what_is_recorded(text, settings):
    assert RecordSettings.parse(text) == settings
    assert RecordSettings.from_environ({"MOSAIC_RECORD": text}) == settings
    assert config(record=text).record_settings({}) == settings


@pytest.mark.parametrize("text", ["every", "every=0", "every=x", "every=-1", "all", "best=1", "best worst"])
def test_invalid_record_settings_are_refused_with_the_valid_ones(text):
    with pytest.raises(ConfigError, match="is none of every=N") as refused:
        RecordSettings.from_environ({"MOSAIC_RECORD": text})
    assert str(refused.value).startswith(f"MOSAIC_RECORD: {text!r} is not allowed: ")
    with pytest.raises(ConfigError, match=f"record: {text!r} is not allowed"):
        config(record=text)
