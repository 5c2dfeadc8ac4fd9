"""Configs of a run, nested and flat, and the schemas of hyperparameters."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONFIGS = """
import json
import ray
from jsonschema import Draft202012Validator
from mosaic_worker.config import parse_config
from mosaic_worker.errors import ConfigError
from ray_worker.config import ALGORITHMS, RayWorkerConfig

def parse(**given):
    return parse_config(RayWorkerConfig, {"run_id": "r", **given}, {})

def refusal(**given):
    try:
        parse(**given)
    except ConfigError as error:
        return str(error)
    return "accepted"

parts = {
    "environment": {"env_id": "waterworld_v4", "family": "sisl", "api_type": "PARALLEL"},
    "training": {"algorithm": "A2C", "total_timesteps": 10, "algo_params": {"lr": 0.1}},
    "resources": {"num_workers": 1, "num_gpus": 0, "num_cpus": 0.5},
    "checkpoint": {"checkpoint_every": 5},
    "self_play": {"league_size": 2},
}
flat = {name: value for part in parts.values() for name, value in part.items()}
mixed = {"env_id": "waterworld_v4", "training": parts["training"], "num_workers": 1, "resources": {"num_cpus": 0.5}}
schema = RayWorkerConfig.model_json_schema()
judge = Draft202012Validator(schema)
wrong = {"clip_parm": 1}
print(json.dumps({
    "same": parse(**parts) == parse(**flat),
    "nested": parse(**parts).model_dump(mode="json"),
    "mixed": parse(**mixed).resources.model_dump(),
    "twice": refusal(**{**parts, "algorithm": "PPO"}),
    "strange": refusal(**{**parts, "training": {**parts["training"], "algo": "PPO"}}),
    "ray": ray.__version__,
    "schemas": {name: schema["$defs"][name] for name in ALGORITHMS},
    "valid": [judge.is_valid({"run_id": "r", **given}) for given in (parts, flat)],
    "invalid": [
        judge.is_valid({"run_id": "r", **given})
        for given in (
            {**parts, "training": {**parts["training"], "algo_params": wrong}},
            {**flat, "algo_params": wrong},
        )
    ],
}))
"""


def test_a_nested_config_and_a_flat_one_are_the_same_and_hyperparameters_have_versioned_schemas(rllib):
    found = rllib.says(CONFIGS)
    assert found["same"]
    nested = found["nested"]
    assert nested["environment"]["api_type"] == "PARALLEL"
    assert (nested["training"]["algorithm"], nested["training"]["algo_params"]) == ("A2C", {"lr": 0.1})
    assert nested["resources"]["num_cpus"] == 0.5
    assert (nested["checkpoint"]["checkpoint_every"], nested["self_play"]["league_size"]) == (5, 2)
    assert (found["mixed"]["num_workers"], found["mixed"]["num_cpus"]) == (1, 0.5)
    assert "algorithm is also in training; give it once" in found["twice"]
    assert "training.algo" in found["strange"]

    for name, schema in found["schemas"].items():
        assert schema["$id"] == f"mosaic:ray/{name}/{found['ray']}/1", name
        assert schema["version"] == found["ray"], name
        assert schema["additionalProperties"] is False, name
        assert "lr" in schema["properties"], name
        assert ("reduced" in schema["description"]) == (name == "A2C"), "A2C is labelled as the PPO that it is"
    assert found["schemas"]["A2C"]["properties"]["num_epochs"]["default"] == 1
    assert found["valid"] == [True, True]
    assert found["invalid"] == [False, False]
