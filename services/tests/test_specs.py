"""Run specs from files and KEY=VALUE words."""

from __future__ import annotations

import json

import pytest
from mosaic_cli import Cli

from mosaic_services.specs import SpecError, make_spec, parse_word, read_file, split_words


@pytest.mark.parametrize(
    ("word", "keys", "value"),
    [
        ("config.seed=3", ["config", "seed"], 3),
        ("seed=3", ["config", "seed"], 3),
        ("env_kwargs.g=3.7", ["config", "env_kwargs", "g"], 3.7),
        ("resources.cpus=0.5", ["resources", "cpus"], 0.5),
        ("name=a=b", ["name"], "a=b"),
        ("layers=[64, 64]", ["config", "layers"], [64, 64]),
        ("flag=true", ["config", "flag"], True),
        ("empty=", ["config", "empty"], ""),
    ],
)
def test_overrides(word, keys, value):
    assert parse_word(word) == (keys, value)


@pytest.mark.parametrize("word", ["=3", "a..b=3", ".a=1", "x=[1"])
def test_bad_overrides_are_refused(word):
    with pytest.raises(SpecError):
        parse_word(word)


def test_overrides_go_into_a_copy_of_the_file():
    document = {"worker": "baseline", "config": {"seed": 1, "env_kwargs": {"g": 9.8}}}
    spec = make_spec(document, ["seed=2", "env_kwargs.m=1", "grace_s=3"], "here")
    assert spec.config == {"seed": 2, "env_kwargs": {"g": 9.8, "m": 1}}
    assert spec.grace_s == 3
    assert document["config"] == {"seed": 1, "env_kwargs": {"g": 9.8}}


@pytest.mark.parametrize(
    ("document", "said", "hint"),
    [
        ({"wroker": "baseline"}, "here: field 'wroker' is unknown", "did you mean worker?"),
        ({"worker": "x", "learning_rate": 1}, "'learning_rate'", "under config:"),
        ({"worker": "x", "resources": {"memory": 1}}, "here: resources: field 'memory'", "did you mean memory_mb?"),
        ({"config": {}}, "no worker", "worker: baseline"),
        ({"worker": "x", "resources": {"cpus": "many"}}, "resources.cpus", ""),
        ({"worker": "No Such"}, "worker", ""),
    ],
)
def test_what_is_unknown_is_refused_with_near_names(document, said, hint):
    with pytest.raises(SpecError) as caught:
        make_spec(document, [], "here")
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_error_in_a_file_names_its_line_and_one_of_the_command_line_does_not(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("worker: baseline\nresources:\n  memory_mb: 5\n  cpus: many\nconfig:\n  seed: 1\n")
    with pytest.raises(SpecError, match=r"run.yaml:4: resources.cpus: must be a number, got 'many'"):
        make_spec(read_file(file), [], str(file))
    with pytest.raises(SpecError, match=r"command line: grace_s: must be a number"):
        make_spec(read_file(file), ["resources.cpus=1", "grace_s=long"], str(file))
    file.write_text("worker: baseline\n\nnmae: x\n")
    with pytest.raises(SpecError, match=r"run.yaml:3: field 'nmae'"):
        make_spec(read_file(file), [], str(file))


def test_mistyped_folder_and_file_are_both_suggested(tmp_path):
    (tmp_path / "configs" / "runs").mkdir(parents=True)
    (tmp_path / "configs" / "runs" / "ppo.yaml").write_text("worker: x")
    with pytest.raises(SpecError) as caught:
        read_file(tmp_path / "confgs" / "runs" / "ppo.yml")
    assert str(tmp_path / "configs" / "runs" / "ppo.yaml") in caught.value.hint


def test_files(tmp_path):
    good = tmp_path / "good.yaml"
    good.write_text("worker: baseline\nconfig: {seed: 3}\n")
    as_json = tmp_path / "good.json"
    as_json.write_text(json.dumps({"worker": "baseline"}))
    assert read_file(good)["config"] == {"seed": 3}
    assert read_file(as_json) == {"worker": "baseline"}
    (tmp_path / "bad.yaml").write_text("worker: [baseline\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, said in (("bad.yaml", "bad.yaml:2:1"), ("empty.yaml", "empty"), ("binary.yaml", "binary.yaml")):
        with pytest.raises(SpecError, match=said):
            read_file(tmp_path / name)
    with pytest.raises(SpecError) as caught:
        read_file(tmp_path / "god.yaml")
    assert "good.yaml" in caught.value.hint


def test_a_file_whose_name_has_an_equals_sign_is_a_file(tmp_path):
    odd = tmp_path / "a=b.yaml"
    odd.touch()
    assert split_words([str(odd), "seed=3"]) == ([odd], ["seed=3"])


def test_a_value_may_be_longer_than_a_file_name(tmp_path):
    cli = Cli(tmp_path / "home")
    assert "no stack runs" in cli("submit", "--worker", "stress", f"note={'x' * 5000}", code=3).stderr
    assert "File name too long" in cli("sweep", "x" * 5000, code=2).stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [("2024-13-45", "month must be in 1..12"), ("&a [*a]", "recursive"), ("[" * 1000, "nested too deep")],
)
def test_yaml_that_cannot_be_read_is_bad_input(tmp_path, refusal, value, said):
    file = tmp_path / "file.yaml"
    file.write_text(f"worker: stress\nconfig:\n  when: {value}\n")
    refused = refusal("submit", str(file))
    assert refused.startswith(f"error: {file}")
    assert said in refused
    assert refusal("submit", "--worker", "stress", f"when={value}").startswith("error: when: ")
    file.write_text(f"host: {value}\n")
    refused = refusal("up", "--config", str(file))
    assert refused.startswith(f"error: {file}")
    assert said in refused


@pytest.mark.parametrize(
    ("text", "where", "key"),
    [
        ("worker: stress\nworker: baseline\n", "2:1", "worker"),
        ("worker: stress\nconfig: {lr: 1, gamma: 2, lr: 3}\n", "2:27", "lr"),
    ],
)
def test_field_that_is_given_twice_is_refused_and_where(tmp_path, refusal, text, where, key):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert refusal("submit", str(file)).startswith(f"error: {file}:{where}: not YAML: '{key}' is given twice")


def test_file_of_a_sweep_is_told_where_it_belongs(tmp_path, refusal):
    file = tmp_path / "file.yaml"
    file.write_text("worker: stress\nsweep: {seeds: 3}\n")
    assert "mosaic sweep FILE" in refusal("submit", str(file))


def test_yaml_may_say_something_twice_and_name_days_that_exist(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("worker: stress\nconfig: {a: &a {x: [1]}, b: *a, c: {<<: *a, y: 2}, when: 2024-12-05}\n")
    config = read_file(file)["config"]
    assert (config["a"], config["b"], config["c"]) == ({"x": [1]}, {"x": [1]}, {"x": [1], "y": 2})
    assert str(config["when"]) == "2024-12-05"
