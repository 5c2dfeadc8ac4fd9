"""A run that uses the environments of other workers, through a real stack."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from stack import HOST, STRESS, Stack

from mosaic_bus import CommandRefusedError, topics
from mosaic_bus.commands import Place
from mosaic_bus.messages import RunSpec
from mosaic_services.environments import recipe_for, removal, status


def test_run_starts_a_process_in_each_environment_that_it_uses_as_its_worker_json_says(shared_stack, tmp_path):
    stack = shared_stack
    asked = [{"cmd": "ping", "id": 1}, {"cmd": "reset", "seed": 3, "id": 2}, {"cmd": "stop", "id": 3}]
    uses = [{"worker": "baseline"}]
    run = stack.submit(uses=uses, pythonpath=[str(tmp_path)], config={"ask_used": asked})
    state = stack.wait_final(run)
    assert state.state == "succeeded", state.reason

    answers = [json.loads(line) for line in stack.journal(run).read_text().splitlines() if '"used"' in line]
    assert [(each["worker"], each["profile"]) for each in answers] == 3 * [("baseline", "default")]
    assert [each["answer"]["type"] for each in answers] == ["pong", "reset", "stopped"]
    (use,) = json.loads((stack.journal(run).parent / "worker.json").read_text())["uses"]
    environment = status(recipe_for("baseline", stack.home), "default")
    assert use["interpreter"] == use["argv"][0] == str(environment.python)
    assert use["environ"]["PYTHONPATH"].split(":") == [str(environment.site), str(tmp_path)]
    assert Path(use["environ"]["PATH"].split(":")[0]) == environment.venv / "bin"
    assert "HOME" not in use["environ"], "variables of the user's own, secrets perhaps, are not left on disk"


@pytest.mark.parametrize(
    ("use", "code"),
    [({"worker": "nobody"}, "unknown_worker"), ({"worker": "baseline", "profile": "no"}, "unknown_profile")],
)
def test_host_refuses_an_attempt_that_uses_what_it_does_not_have(shared_stack, use, code):
    spec = RunSpec.model_validate({"worker": "stress", "uses": [use]})
    with pytest.raises(CommandRefusedError) as refused:
        shared_stack.bus.request(topics.supervisor(HOST), Place(run="01USES", attempt=1, run_name="x", spec=spec))
    assert refused.value.code == code
    assert not (shared_stack.home.runs / "01USES").exists()


@pytest.mark.slow
def test_environment_that_a_run_uses_is_built_before_it_starts(tmp_path, workers):
    copy = tmp_path / "other_worker"
    shutil.copytree(STRESS, copy)
    for name, old, new in (
        ("pyproject.toml", "stress = ", "other = "),
        ("stress_worker/__init__.py", '"stress"', '"other"'),
    ):
        (copy / name).write_text((copy / name).read_text().replace(old, new))
    # Code that nobody has built before.
    (copy / "stress_worker" / "fresh.py").write_text(f'FRESH = "{tmp_path}"\n')
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": f"{STRESS}:{copy}"}) as stack:
        run = stack.submit(uses=[{"worker": "other"}])
        state = stack.wait_final(run)
        assert state.state == "succeeded", state.reason
        (use,) = json.loads((stack.journal(run).parent / "worker.json").read_text())["uses"]
        site = Path(use["environ"]["PYTHONPATH"])
        assert (site / "complete.json").exists()
        assert (site / "stress_worker" / "fresh.py").read_text() == f'FRESH = "{tmp_path}"\n'
        assert (use["worker"], use["argv"]) == ("other", [use["interpreter"], "-m", "stress_worker.cli"])
    removal.remove("other", None, stack.home)
    assert not site.exists()
