"""Discovery finds workers by their entry points and reports why a broken one fails."""

import json

from mosaic_worker.config import WorkerConfig
from mosaic_worker.metadata import AlgorithmCard, Parameter, WorkerCapabilities, WorkerMetadata


def test_a_worker_is_found_and_described(site, run_module):
    done = run_module("mosaic_worker.discover", site, "tiny")
    card = json.loads(done.stdout)["tiny"]
    assert done.returncode == 0
    assert card["module"] == "tiny_worker"
    assert card["metadata"]["version"] == "1.2.3"
    assert card["example_config"] == {"episodes": 300, "seed": 5}


def test_all_workers_are_listed_without_a_name(site, run_module):
    assert "tiny" in json.loads(run_module("mosaic_worker.discover", site).stdout)


def test_an_unknown_name_lists_the_available_workers(site, run_module):
    done = run_module("mosaic_worker.discover", site, "tny")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {}
    assert "no worker 'tny' in this environment; there are: " in done.stderr
    assert "tiny" in done.stderr


def test_a_worker_whose_import_fails_is_listed_with_its_error(variant, run_module):
    first_line = "from mosaic_worker import WorkerCapabilities"
    folder = variant(code={first_line: f"print('hi'); import no_such_library\n{first_line}"})
    done = run_module("mosaic_worker.discover", folder)
    assert done.returncode == 0
    assert json.loads(done.stdout)["tiny"] == {
        "module": "tiny_worker",
        "error": "ModuleNotFoundError: No module named 'no_such_library'",
    }


def test_a_name_that_differs_from_the_metadata_is_an_error(variant, run_module):
    done = run_module("mosaic_worker.discover", variant(name="other"), "other")
    assert done.returncode == 1
    assert "the metadata says 'tiny'" in json.loads(done.stdout)["other"]["error"]


def test_algorithms_are_listed_only_when_the_worker_is_described():
    asked = []

    def algorithms():
        asked.append(True)
        rate = Parameter(name="rate", type="float", default=0.5, help="how fast it learns")
        return [AlgorithmCard(name="dqn", runs=True, parameters=(rate,)), AlgorithmCard(name="sac", runs=False)]

    metadata = WorkerMetadata(
        name="tiny",
        version="1",
        capabilities=WorkerCapabilities(worker_type="tiny"),
        config_model=WorkerConfig,
        example_config={},
        algorithms=algorithms,
    )
    assert not asked
    description = metadata.describe()
    assert [card["name"] for card in description["algorithms"]] == ["dqn", "sac"]
    assert description["algorithms"][0]["parameters"][0]["default"] == 0.5
    assert "algorithms" not in description["metadata"]
    json.dumps(description)
