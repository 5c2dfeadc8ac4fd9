"""Configs are read in the flat and the nested form, and a refusal says what to correct."""

import json
from functools import reduce
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from mosaic_worker.config import WorkerConfig, parse_config, read_document
from mosaic_worker.errors import ConfigError


class Network(BaseModel, extra="forbid"):
    layers: list[int] = [64]


class Config(WorkerConfig):
    agent: Literal["random", "passive"] = "random"
    episodes: int = Field(default=1, ge=1)
    network: Network = Network()


def refusal(document, environ=None):
    with pytest.raises(ConfigError) as caught:
        parse_config(Config, document, environ or {})
    assert str(caught.value).splitlines() == caught.value.problems
    return caught.value.problems


def test_flat_and_nested_forms_give_the_same_config():
    flat = parse_config(Config, {"run_id": "r1", "episodes": 5}, {})
    nested = parse_config(Config, {"run_id": "r1", "metadata": {"worker": {"config": {"episodes": 5}}}}, {})
    assert flat == nested
    assert flat.run_id == "r1"


@pytest.mark.parametrize(
    ("top", "inside", "environ", "run_id"),
    [
        ("top", "inside", "env", "top"),
        (None, "inside", "env", "inside"),
        (None, None, "env", "env"),
    ],
)
def test_the_run_id_comes_from_the_document_before_the_environment(top, inside, environ, run_id):
    config = {} if inside is None else {"run_id": inside}
    document = {"metadata": {"worker": {"config": config}}} | ({} if top is None else {"run_id": top})
    assert parse_config(Config, document, {"MOSAIC_RUN_ID": environ}).run_id == run_id


def test_a_missing_run_id_says_where_it_can_be_given():
    assert refusal({}) == ["run_id: missing; give it in the config, or set MOSAIC_RUN_ID"]


def test_each_problem_has_a_line_with_field_value_and_what_is_allowed():
    assert refusal({"run_id": "r", "agent": "randm", "episodes": 0, "seed": "x", "episods": 3}) == [
        "seed: 'x' is not allowed: input should be a valid integer, unable to parse string as an integer",
        "agent: 'randm' is not allowed: input should be 'random' or 'passive'; did you mean 'random'?",
        "episodes: 0 is not allowed: input should be greater than or equal to 1",
        (
            "episods: unknown field, given 3; did you mean 'episodes'? "
            "(fields: run_id, worker_id, seed, agent, episodes, network)"
        ),
    ]


def test_unknown_fields_of_nested_models_are_named_with_their_path():
    assert refusal({"run_id": "r", "network": {"layer": [3]}}) == [
        "network.layer: unknown field, given [3]; did you mean 'layers'? (fields: layers)"
    ]


def test_long_values_are_shortened():
    (line,) = refusal({"run_id": "r", "episodes": "x" * 1000})
    assert len(line) < 200


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"api_key": "hush"}, "api_key: unknown field, given '•••'"),
        ({"agent": "https://u:hush@host/v1"}, "agent: '•••' is not allowed"),
        ({"agent": "https://host/v1?k=hush"}, "agent: '•••' is not allowed"),
        ({"headers": {"Authorization": ["hush"]}}, "headers: unknown field, given {'Authorization': ['•••']}"),
        ({"network": {"token": "hush", "url": "https://host"}}, "network.token: unknown field, given '•••'"),
        ({"max_tokens": 0}, "max_tokens: unknown field, given 0"),
        ({"agent": "run:grid@last"}, "agent: 'run:grid@last' is not allowed"),
    ],
)
def test_text_that_may_be_a_secret_is_not_repeated(given, shown):
    lines = refusal({"run_id": "r", **given})
    assert lines[0].startswith(shown)
    assert "hush" not in str(lines)


@pytest.mark.parametrize("document", [[], "text", None, 3, {"metadata": {"worker": {"config": []}}}])
def test_what_is_not_an_object_is_refused(document):
    assert "give a JSON object" in refusal(document)[0]


@pytest.mark.parametrize("document", [{"metadata": {"worker": {}}}, {"metadata": {"worker": None}}])
def test_a_nested_document_without_config_is_refused(document):
    assert refusal(document) == ["metadata.worker.config: missing from a nested config; give a JSON object"]


@pytest.mark.parametrize("metadata", [5, True, "worker", ["worker"]])
def test_metadata_that_is_not_an_object_is_an_unknown_field(metadata):
    (line,) = refusal({"run_id": "r", "metadata": metadata})
    assert line.startswith(f"metadata: unknown field, given {metadata!r}")


def test_a_config_nested_deeper_than_can_be_written_is_refused():
    class Open(WorkerConfig):
        kwargs: dict[str, Any]

    def nested(levels):
        return {"kwargs": reduce(lambda inner, _: {"a": inner}, range(levels), 1), "run_id": "r"}

    assert parse_config(Open, nested(60), {}).model_dump(mode="json")
    for levels in (70, 400):
        with pytest.raises(ConfigError, match="nested too deeply"):
            parse_config(Open, nested(levels), {})


def test_a_loaded_config_cannot_be_changed():
    config = parse_config(Config, {"run_id": "r"}, {})
    with pytest.raises(ValueError, match="frozen"):
        config.episodes = 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "Exceeds the limit"),
        (None, "cannot be read"),
    ],
    ids=lambda given: str(given)[:12],
)
def test_bad_files_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "worker.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        parse_config(Config, read_document(path), {})
    assert "worker.json" in str(caught.value)


def test_a_file_is_loaded(tmp_path):
    path = tmp_path / "worker.json"
    path.write_text(json.dumps({"run_id": "r", "agent": "passive"}))
    assert parse_config(Config, read_document(path), {}).agent == "passive"
