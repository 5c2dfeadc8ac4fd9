"""Experiment files: what they may say, and what is said about a mistake."""

from pathlib import Path

import pytest

from mosaic_services.experiments.lineups import expand_lineups
from mosaic_services.experiments.plan import env_seed
from mosaic_services.experiments.reading import make_experiment, read_experiments
from mosaic_services.specs import SpecError

CONFIGS = Path(__file__).parents[2] / "configs" / "experiments"
ORIGINAL = sorted((CONFIGS / "original").glob("*.py"))
BASIC = """\
name: trial
environment: {id: CartPole-v1}
operators:
  random: {worker: baseline, behavior: random}
  ppo: {worker: cleanrl, checkpoint: run:train@best}
episodes: 10
"""


def write(folder: Path, text: str, name: str = "trial.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read_one(path: Path):
    (experiment,), _ = read_experiments(path)
    return experiment


def names(experiment) -> dict[str, dict[str, str]]:
    return {each.name: each.agents for each in expand_lineups(experiment)}


def test_keys_beside_an_operators_own_are_its_workers_config(tmp_path):
    experiment = read_one(write(tmp_path, BASIC))
    assert experiment.operators["random"].config == {"behavior": "random"}
    assert experiment.environment.family == "gymnasium"
    assert names(experiment) == {"random": {"*": "random"}, "ppo": {"*": "ppo"}}


@pytest.mark.parametrize(
    ("more", "competitive"), [("", None), (", agents: [a, b]", True), (", agents: [a, b], competitive: false", False)]
)
def test_two_named_players_are_opponents_unless_the_file_says_otherwise(tmp_path, more, competitive):
    text = BASIC.replace("{id: CartPole-v1}", "{id: mine_v0" + more + "}")
    assert read_one(write(tmp_path, text)).environment.competitive is competitive


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("episodes: 10", "episdes: 10", 6, "did you mean episodes"),
        ("episodes: 10", "episodes: 0", 6, "must be at least 1"),
        ("{id: CartPole-v1}", "{id: CartPole-v1, familly: aec}", 2, "did you mean family?"),
        ("{id: CartPole-v1}", "{id: CartPole-v1, family: turns}", 2, "'gymnasium'"),
        ("episodes: 10", "seeds: {mode: procedual}", 6, "'procedural'"),
        ("episodes: 10", "seeds: {mode: fixed}", 6, "needs values"),
        ("episodes: 10", "until: {width: 2, decided: true}", 6, "either width"),
        ("episodes: 10", "until: {decided: true, cap: 10}", 6, "at least 50"),
        ("episodes: 10", "lineups: pairs", 6, "agents: [player_0, player_1]"),
        ("episodes: 10", "lineups: all", 6, "each, pairs"),
        ("episodes: 10", "lineups: [{agent: rnd}]", 6, "did you mean random?"),
        ("episodes: 10", "lineups: [{name: ../x, agent: ppo}]", 6, "'../x' is no name of a lineup"),
        ("episodes: 10", "lineups: [{name: .., agent: ppo}]", 6, "no dot or space in front"),
        ("episodes: 10", "lineups: [{name: /tmp/x, agent: ppo}]", 6, "no name of a lineup"),
        ("episodes: 10", 'lineups: [{name: "a\\nb", agent: ppo}]', 6, "no name of a lineup"),
        ("  ppo:", "  ..:", 5, "must match"),
        ("episodes: 10", "failures: {then: ignore}", 6, "forfeit"),
        ("checkpoint: run", "chekpoint: run", 5, "did you mean checkpoint?"),
        ("name: trial", "name: a b", 1, "must match"),
    ],
)
def test_mistake_is_named_with_its_line_and_what_is_allowed(tmp_path, old, new, line, said):
    path = write(tmp_path, BASIC.replace(old, new))
    with pytest.raises(SpecError) as caught:
        read_experiments(path)
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert said in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("just words", "an experiment is a map of fields"),
        ("a: [", "not YAML"),
        ("name: x\noperators: {a: {worker: baseline}}", "environment is missing"),
        ("name: x\nenvironment: {id: a}", "operators is missing"),
    ],
)
def test_unreadable_file_is_named(tmp_path, text, said):
    with pytest.raises(SpecError, match=said):
        read_experiments(write(tmp_path, text))


def test_pairs_play_both_sides_of_a_game_and_every_player_needs_an_operator():
    game = {"name": "g", "environment": "tictactoe_v3", "operators": {x: {"worker": "baseline"} for x in "abc"}}
    experiment = make_experiment(game, "g")
    assert experiment.environment.family == "aec"
    assert len(names(experiment)) == 6
    assert names(experiment)["b-vs-a"] == {"player_1": "b", "player_2": "a"}
    assert len(names(make_experiment({**game, "swap_sides": False}, "g"))) == 3
    with pytest.raises(SpecError, match="'player_2' has no operator"):
        make_experiment({**game, "lineups": [{"player_1": "a"}]}, "g")
    with pytest.raises(SpecError, match="no agent is called 'player_3'"):
        make_experiment({**game, "lineups": [{"player_1": "a", "player_3": "b"}]}, "g")


@pytest.mark.parametrize(
    ("lineup", "order"),
    [
        ({"black": "b", "white": "a"}, {"white": "a", "black": "b"}),
        ({"black": "b", "*": "a"}, {"*": "a", "black": "b"}),
        ({"*": "b", "white": "a"}, {"white": "a", "*": "b"}),
    ],
)
def test_agents_of_a_lineup_are_in_the_order_in_which_they_move(lineup, order):
    environment = {"id": "mine_v0", "agents": ["white", "black"]}
    fields = {"name": "g", "environment": environment, "operators": {x: {"worker": "random"} for x in "ab"}}
    (made,) = expand_lineups(make_experiment({**fields, "lineups": [lineup]}, "g"))
    assert list(made.agents.items()) == list(order.items())


def test_name_of_a_lineup_may_have_spaces(tmp_path):
    path = write(tmp_path, BASIC + "lineups: [{name: ppo (trained) v1.2, agent: ppo}]\n")
    assert list(names(read_one(path))) == ["ppo (trained) v1.2"]


def test_groups_name_agents_that_share_an_operator():
    spread = {
        "name": "g",
        "environment": {"id": "simple_spread_v3"},
        "operators": {"a": {"worker": "xuance"}, "b": {"worker": "ray"}},
        "groups": {"left": ["agent_0", "agent_1"]},
        "lineups": [{"left": "a", "agent_2": "b"}, {"name": "all", "*": "a"}],
    }
    experiment = make_experiment(spread, "g")
    assert experiment.environment.family == "parallel"
    assert names(experiment) == {"a-vs-b": {"agent_0": "a", "agent_1": "a", "agent_2": "b"}, "all": {"*": "a"}}


def test_python_file_runs_in_a_process_of_its_own(tmp_path):
    experiment = read_one(CONFIGS / "pendulum.py")
    assert (experiment.seeds.mode, experiment.seeds.values[:2]) == ("list", (500, 501))
    for text, said in (
        ("raise RuntimeError('no such thing')", "no such thing"),
        ("x = 1", "defines no experiment"),
        ("import os; os._exit(3)", "exit 3"),
        ("experiment = {'environment': object()}", "object is no value"),
        ("operators = 3", "operators must be a list"),
        ("operators = [{'task': 'A-v0', 'workers': {'agent': {'type': 'rnd'}}}]", "type 'rnd' is unknown"),
        (
            "operators = [{'task': 'A', 'workers': {'a': {'type': 'random'}}}]; execution = {'env_mode': 'fixd'}",
            "environment_mode 'fixd' is unknown",
        ),
    ):
        with pytest.raises(SpecError, match=said):
            read_experiments(write(tmp_path, text, "trial.py"))
    printing = "print('hello')\nexperiment = {'environment': 'CartPole-v1', 'operators': {'a': {'worker': 'baseline'}}}"
    assert read_one(write(tmp_path, printing, "my trial.py")).name == "my-trial"


@pytest.mark.parametrize("path", ORIGINAL, ids=lambda path: path.stem)
def test_every_script_of_the_originals_shape_is_read(path):
    """Defect of the original: its loader refuses four of its own five scripts, such as those with a range of seeds."""
    experiment = read_one(path)
    assert experiment.environment.id.startswith("MiniGrid-")
    assert experiment.environment.max_steps in {100, 150, 200}
    assert all(each.worker in {"baseline", "cleanrl"} for each in experiment.operators.values())


def test_seeds_of_original_scripts_fixed_and_counted_on():
    seeds = {path.stem: read_one(path).seeds.model_dump() for path in ORIGINAL}
    assert [env_seed(seeds["empty8x8_fixed"], episode) for episode in range(3)] == [42, 42, 42]
    counted = [env_seed(seeds["dynamic_obstacles_procedural"], episode) for episode in range(6)]
    assert counted == [3000, 3001, 3002, 3003, 3004, 3005]


MODEL = {"type": "llm", "worker_id": "mosaic_llm_worker", "seed": 1}
BOTH = {"client_name": "vllm", "model_id": "m", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("worker", "name", "config"),
    [
        ({"type": "random"}, "baseline", {"behavior": "random"}),
        ({"type": "passive"}, "baseline", {"behavior": "passive"}),
        ({"type": "baseline", "behavior": "noop"}, "baseline", {"behavior": "passive"}),
        ({"type": "rl", "worker_id": "xuance_worker", "policy_path": "run:a@best"}, "xuance", {}),
        ({"type": "human"}, "human", {}),
        (MODEL, "llm", {}),
        (
            {**MODEL, "settings": {**BOTH, "agent_type": "robust_naive", "max_text_history": 3, "temperature": 0}},
            "llm",
            {"endpoint": "vllm", "model": "m", "base_url": BOTH["base_url"]}
            | {"agent": "robust", "history": 3, "temperature": 0},
        ),
        (
            {"type": "vlm", "worker_id": "balrog_worker", "base_url": "http://127.0.0.1:1/v1", "model": "m"},
            "llm",
            {"endpoint": "vllm", "base_url": "http://127.0.0.1:1/v1", "model": "m", "vision": True},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_type_of_worker_of_original_scripts(tmp_path, worker, name, config):
    script = f"operators = [{{'id': 'a', 'task': 'MiniGrid-Empty-5x5-v0', 'workers': {{'agent': {worker!r}}}}}]"
    operator = read_one(write(tmp_path, script, "one.py")).operators["a"]
    assert (operator.worker, operator.config) == (name, config)


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ({**MODEL, "client_name": "gemini"}, "client_name 'gemini' is unknown"),
        ({**MODEL, "agent_type": "robust_cot"}, "agent_type 'robust_cot' is unknown"),
        ({**MODEL, "api_key": "sk-1"}, "a key does not stand in a file"),
        ({**MODEL, "observation_mode": "x"}, "option 'observation_mode' of a language model is unknown"),
        ({**MODEL, "model_id": "m"}, "nothing says where model 'm' is"),
    ],
)
def test_option_of_a_language_model_without_counterpart_is_refused(tmp_path, worker, said):
    script = f"operators = [{{'id': 'a', 'task': 'MiniGrid-Empty-5x5-v0', 'workers': {{'agent': {worker!r}}}}}]"
    with pytest.raises(SpecError, match=said):
        read_experiments(write(tmp_path, script, "one.py"))


def test_steps_that_workers_of_original_scripts_name_are_kept(tmp_path):
    script = "operators = [{'task': 'chess', 'workers': {'player_0': {'type': 'random', 'max_steps': 9}, "
    script += "'player_1': {'type': 'random', 'max_steps': STEPS}}}]"
    assert read_one(write(tmp_path, script.replace("STEPS", "9"), "one.py")).environment.max_steps == 9
    with pytest.raises(SpecError, match="different max_steps: 9, 8"):
        read_experiments(write(tmp_path, script.replace("STEPS", "8"), "one.py"))


def test_operators_of_a_script_with_two_environments_become_two_experiments(tmp_path):
    script = """
operators = [
    {"id": "a", "env_name": "minigrid", "task": task, "workers": {"agent": {"type": "random"}}}
    for task in ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0")
] + [{"id": "mixed", "env_name": "pettingzoo", "task": "chess",
      "workers": {"player_0": {"type": "rl", "worker_id": "ray_worker", "policy_path": "models/a"},
                  "player_1": {"type": "baseline", "behavior": "passive"}}}]
execution = {"num_episodes": 3, "seeds": 7}
"""
    experiments, _ = read_experiments(write(tmp_path, script, "two.py"))
    assert [each.name for each in experiments] == ["two-1", "two-2", "two-3"]
    game = experiments[2]
    assert (game.environment.id, game.environment.family) == ("chess_v6", "aec")
    assert names(game) == {"mixed": {"player_0": "mixed-player_0", "player_1": "mixed-player_1"}}
    assert game.operators["mixed-player_0"].worker == "ray"
    assert game.operators["mixed-player_0"].checkpoint == str(tmp_path / "models" / "a")
