"""What the worker refuses, and why, before anything is played or learned."""

import json
import shutil

import pytest
from xuance_runs import QUICK, RUNNER, SPREAD, VDN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MANY = (
    RUNNER
    + """
print(json.dumps([refusal(given) for given in json.loads(sys.argv[1])]))
"""
)
SPEAKER = "simple_speaker_listener_v4"


def check(xuance, cases):
    """Let each config be checked, all in one process; the refusal begins with the field and has the words."""
    said = xuance.says(MANY, json.dumps([case for case, _, _ in cases]))
    for text, (case, field, words) in zip(said, cases, strict=True):
        assert text.startswith(f"{field}:"), (case, text)
        assert words in text, (case, text)


def test_a_training_that_cannot_run_is_refused(xuance):
    (xuance.folder / "bad.yaml").write_text("- no mapping")
    (xuance.folder / "other.yaml").write_text("agent: QMIX\n")
    sharing = {"use_parameter_sharing": True}
    cases = [
        ({**VDN, "algorithm": "mapo"}, "algorithm", "MAPPO"),
        ({**VDN, "algorithm": "npg", "env_id": "CartPole-v1"}, "algorithm", "22 GB"),
        ({**VDN, "algorithm": "dcg"}, "algorithm", "torch_scatter"),
        ({**VDN, "algorithm": "cwqmix"}, "algorithm", "learner"),
        ({**VDN, "method": "qmix"}, "method", "give one"),
        ({**VDN, "env_id": "simple_spred_v3"}, "env_id", "simple_spread_v3"),
        ({**VDN, "env": "sisl"}, "env", "mpe"),
        ({**VDN, "running_step": 5}, "running_step", "running_steps"),
        ({**VDN, "running_steps": 0}, "running_steps", "needs it"),
        ({**VDN, "backend": "tensorflow"}, "backend", "torch"),
        ({**VDN, "device": "cuda:7"}, "device", "GPU"),
        # The algorithm and the environment do not fit.
        ({**VDN, "env_id": "simple_tag_v3"}, "algorithm", "opponents"),
        ({**VDN, "env_id": "CartPole-v1"}, "algorithm", "one agent"),
        ({**SPREAD, "algorithm": "ppo", "running_steps": 9}, "algorithm", "several agents"),
        ({**VDN, "algorithm": "dqn", "env_id": "Pendulum-v1"}, "algorithm", "discrete"),
        ({**VDN, "algorithm": "td3", "env_id": "CartPole-v1"}, "algorithm", "continuous"),
        ({**VDN, "overrides": {"continuous_action": True}}, "algorithm", "discrete"),
        ({**VDN, "algorithm": "maddpg", "overrides": {"continuous_action": False}}, "algorithm", "continuous"),
        ({**VDN, "algorithm": "coma", "env_id": SPEAKER, "overrides": {}}, "algorithm", "alike"),
        ({**VDN, "env_id": SPEAKER, "overrides": sharing}, "overrides.use_parameter_sharing", "differ"),
        ({**VDN, "algorithm": "maddpg", "overrides": {"use_actions_mask": True}}, "overrides.use_actions_mask", "mask"),
        # XuanCe's own settings.
        ({**VDN, "overrides": {"gama": 0.9}}, "overrides.gama", "gamma"),
        ({**VDN, "overrides": {"gamma": "high"}}, "overrides.gamma", "0.99"),
        ({**VDN, "overrides": {"use_rnn": True}}, "overrides.use_rnn", "Basic_RNN"),
        ({**VDN, "algorithm": "maddpg", "overrides": {"use_rnn": True}}, "overrides.use_rnn", "no recurrent network"),
        ({**VDN, "overrides": {"seed": 3}}, "overrides.seed", "give it as seed"),
        ({**VDN, "config_path": str(xuance.folder / "none.yaml")}, "config_path", "cannot be read"),
        ({**VDN, "config_path": str(xuance.folder / "bad.yaml")}, "config_path", "mapping"),
        ({**VDN, "config_path": str(xuance.folder / "other.yaml")}, "config_path", "QMIX"),
    ]
    check(xuance, cases)


def test_a_refused_run_ends_as_a_configuration_error_and_begins_nothing(xuance):
    (failed,) = xuance.run(code=2, **{**VDN, "env_id": "simple_tag_v3"})
    assert (failed["event"], failed["category"]) == ("run_failed", "configuration")
    assert not (xuance.folder / "tensorboard").exists()


def test_a_checkpoint_that_is_missing_foreign_or_damaged_is_refused(xuance):
    xuance.run(**{**VDN, "running_steps": 40})
    good = xuance.folder / "checkpoints" / "step-40"
    made = {name: xuance.folder / name for name in ("no-settings", "no-weights", "no-model", "other-network")}
    for path in made.values():
        shutil.copytree(good, path)
    about = json.loads((good / "about.json").read_text())
    (made["no-settings"] / "about.json").write_text('{"format": "mosaic-xuance", "version": 1}')
    (made["no-weights"] / "model.pth").write_bytes(b"no weights")
    (made["no-model"] / "model.pth").unlink()
    wider = {**about["settings"], "representation_hidden_size": [128]}
    (made["other-network"] / "about.json").write_text(json.dumps({**about, "settings": wider}))
    foreign = xuance.folder / "foreign"
    foreign.mkdir()
    (foreign / "about.json").write_text('{"format": "another-worker", "version": 1}')
    cases = [
        (xuance.folder / "none", "no such folder"),
        (good / "model.pth", "it is a file"),
        (xuance.folder / "tensorboard", "has no checkpoint"),
        (foreign, "another-worker"),
        (made["no-settings"], "damaged"),
        (made["no-weights"], "no file of trained weights"),
        (made["no-model"], "no file of trained weights"),
        (made["other-network"], "does not fit"),
    ]
    modes = {"policy_eval": ("policy_path", {}), "resume_training": ("checkpoint_path", {"running_steps": 9})}
    check(
        xuance,
        [
            ({"mode": mode, field: str(path), **more}, field, words)
            for path, words in cases
            for mode, (field, more) in modes.items()
        ],
    )
    resume = {"mode": "resume_training", "checkpoint_path": str(good), "running_steps": 9}
    changed = [
        ({**resume, "algorithm": "qmix"}, "algorithm", "VDN"),
        ({**resume, "env_id": "simple_tag_v3"}, "env_id", "simple_spread_v3"),
        ({**resume, "parallels": 2}, "parallels", "has 4"),
        ({**resume, "overrides": {**QUICK, "batch_size": 64}}, "batch_size", "has 32"),
    ]
    check(xuance, changed)
    (failed,) = xuance.run(code=2, **{**resume, "checkpoint_path": str(made["other-network"])})
    assert failed["category"] == "configuration", "a run says the same before it begins"


def test_the_seeds_example_is_accepted_with_its_names_in_any_case(xuance):
    example = {"learning_rate": 5e-4, "batch_size": 256, "backend": "torch", "running_steps": 100}
    others = [{"algorithm": "PPO_Clip", "env_id": "CartPole-v1"}, {"method": "Maddpg", "env_id": "simple_spread_v3"}]
    cases = [{**example, **case} for case in ({"algorithm": "mappo", "env_id": "simple_spread_v3"}, *others)]
    assert xuance.says(MANY, json.dumps(cases)) == ["accepted"] * 3
