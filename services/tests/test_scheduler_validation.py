"""What is refused at submit, and how runs are named and found."""

from __future__ import annotations

import pytest

from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import EnvironmentStatus, HostState, Resources, RunSpec, RunStateName
from mosaic_services.scheduler.model import Host, Run
from mosaic_services.scheduler.naming import find_run, make_name, match_run
from mosaic_services.scheduler.schema import ConfigSchema
from mosaic_services.scheduler.validation import Checked, check_submission

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["run_id", "env_id"],
    "properties": {
        "run_id": {"type": "string"},
        "env_id": {"type": "string", "minLength": 1},
        "episodes": {"type": "integer", "minimum": 1, "maximum": 1000},
        "agent": {"enum": ["random", "greedy"]},
        "seed": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]},
        "nested": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}


def known_hosts(*statuses):
    total = Resources(cpus=2, memory_mb=4000)
    environments = [
        EnvironmentStatus(worker=worker, profile=profile, status="installed", fingerprint="f")
        for worker, profile in statuses or [("baseline", "default"), ("cleanrl", "default"), ("cleanrl", "legacy")]
    ]
    host = Host("local", heard_at=0.0)
    host.report(HostState(host="local", total=total, environments=environments), 0.0)
    return [host]


def refusal(spec, schemas=None):
    with pytest.raises(CommandRefusedError) as raised:
        check_submission(spec, known_hosts(), schemas or {})
    return raised.value


def said_of(schema, config):
    """The problems of a config, as people read them."""
    return [str(each) for each in schema.problems(config)]


def test_an_unknown_worker_is_refused_with_near_and_known_names():
    error = refusal(RunSpec(worker="cleanlr"))
    assert error.code == "unknown_worker"
    details = {"field": "worker", "value": "cleanlr", "near": ["cleanrl"], "allowed": ["baseline", "cleanrl"]}
    assert error.details.model_dump(exclude_defaults=True) == details


def test_an_unknown_profile_is_refused_with_the_known_ones():
    error = refusal(RunSpec(worker="cleanrl", profile="legcy"))
    assert error.code == "unknown_profile"
    details = {"field": "profile", "value": "legcy", "near": ["legacy"], "allowed": ["default", "legacy"]}
    assert error.details.model_dump(exclude_defaults=True) == details


def test_what_no_host_could_hold_is_refused_with_the_numbers_of_the_largest():
    error = refusal(RunSpec(worker="baseline", resources=Resources(cpus=64)))
    assert error.code == "impossible_resources"
    assert "needs 64 cpus and 1024 MB" in error.message
    assert "local, has 2 cpus and 4000 MB in all" in error.message


def test_before_any_host_reported_all_is_accepted_with_a_warning():
    warnings, checked = check_submission(RunSpec(worker="whatever"), [], {})
    assert "no host has reported yet" in warnings[0]
    assert not checked.fingerprint


def test_each_wrong_field_is_named_with_value_and_what_is_allowed():
    schemas = {("baseline", "default", "f"): ConfigSchema(SCHEMA)}
    config = {"episods": 3, "episodes": 0, "agent": "clever", "seed": "x", "nested": {"x": "y"}}
    error = refusal(RunSpec(worker="baseline", config=config), schemas)
    assert error.code == "invalid_config"
    assert [str(each) for each in error.details.problems] == [
        "config.episods: unknown field; did you mean episodes?",
        "config.env_id: missing; allowed: string, length at least 1",
        "config.agent: 'clever' is not allowed; allowed: 'random', 'greedy'",
        "config.episodes: 0 is not allowed; allowed: integer, at least 1, at most 1000",
        "config.nested.x: 'y' is not allowed; allowed: number",
        "config.seed: 'x' is not allowed; allowed: integer, at least 0 or null",
    ]
    fields = [(each.field, each.value, each.near) for each in error.details.problems]
    assert fields[0] == ("config.episods", None, ["episodes"])
    assert fields[3] == ("config.episodes", 0, [])


ALGORITHMS = ["ppo", "ppo_atari", "dqn", "dqn_atari", "dqn_jax", "dqn_atari_jax", "c51", "sac", "td3", "ddpg"]
FIRST_EIGHT = ", ".join(map(repr, ALGORITHMS[:8]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dqnn", "'dqnn' is not allowed; did you mean dqn, dqn_atari, dqn_jax?"),
        ("sca", "'sca' is not allowed; did you mean sac?"),
        ("wonder", f"'wonder' is not allowed; allowed: {FIRST_EIGHT}, … (10 in all)"),
        (5, f"5 is not allowed; allowed: {FIRST_EIGHT}, … (10 in all)"),
    ],
)
def test_of_many_names_the_nearest_are_suggested(given, said):
    schema = ConfigSchema({"properties": {"algo": {"type": "string", "enum": ALGORITHMS}}})
    assert f"config.algo: {said}" in said_of(schema, {"algo": given})


def test_fields_that_depend_on_another_field_are_checked_by_name():
    then = {"properties": {"params": {"properties": {"gamma": {"type": "number"}}, "additionalProperties": False}}}
    schema = ConfigSchema(
        {"allOf": [{"if": {"properties": {"algo": {"const": "dqn"}}, "required": ["algo"]}, "then": then}]}
    )
    assert said_of(schema, {"algo": "ppo", "params": {"gama": 1}}) == []
    assert said_of(schema, {"algo": "dqn", "params": {"gamma": 0.9}}) == []
    assert said_of(schema, {"algo": "dqn", "params": {"gama": 1}}) == [
        "config.params.gama: unknown field; did you mean gamma?"
    ]
    assert said_of(schema, {"algo": "dqn", "params": {"gamma": "x"}}) == [
        "config.params.gamma: 'x' is not allowed; allowed: number"
    ]


def test_a_field_that_may_not_be_given_is_to_be_left_out():
    schema = ConfigSchema({"properties": {"schedule": {"const": None}}})
    assert said_of(schema, {"schedule": None}) == []
    assert said_of(schema, {"schedule": "goto"}) == ["config.schedule: 'goto' is not allowed; leave it out"]
    count = ConfigSchema({"properties": {"count": {"type": "integer"}}, "required": ["count"]})
    assert said_of(count, {"count": None}) == ["config.count: None is not allowed; allowed: integer"]


def test_a_field_that_is_described_twice_is_complained_about_once():
    count = {"type": "integer", "minimum": 0}
    schema = {"properties": {"steps": count}, "allOf": [{"properties": {"steps": {"type": "integer", "minimum": 1}}}]}
    assert said_of(ConfigSchema(schema), {"steps": "abc"}) == [
        "config.steps: 'abc' is not allowed; allowed: integer, at least 0"
    ]
    assert said_of(ConfigSchema(schema), {"steps": 0}) == [
        "config.steps: 0 is not allowed; allowed: integer, at least 1"
    ]


@pytest.mark.parametrize("path", ["models/a.pt", "a.pt", "~/a.pt", ""])
def test_a_relative_path_to_something_that_a_run_reads_is_refused(path):
    kind = {"anyOf": [{"type": "string", "format": "absolute-path"}, {"type": "null"}]}
    schema = ConfigSchema({"properties": {"model": kind}})
    allowed = "an absolute path, or a checkpoint of a run (run:NAME@last, run:NAME@best or run:NAME@STEP) or null"
    assert said_of(schema, {"model": path}) == [f"config.model: {path!r} is not allowed; allowed: {allowed}"]
    assert said_of(schema, {"model": "/models/a.pt"}) == said_of(schema, {"model": None}) == []


def test_a_field_that_belongs_elsewhere_is_suggested_there():
    params = {"properties": {"params": {"$ref": "#/$defs/P"}}, "additionalProperties": False}
    then = {"properties": {"extras": {"properties": {"params": {"properties": {"lr": {"type": "number"}}}}}}}
    schema = ConfigSchema(
        {
            "additionalProperties": False,
            "properties": {"extras": params},
            "allOf": [{"if": {}, "then": then}],
            "$defs": {"P": {"anyOf": [{"properties": {"deep": {}}}, {"$ref": "#/$defs/P"}]}},
        }
    )
    assert said_of(schema, {"lr": 0.1}) == ["config.lr: unknown field; did you mean extras.params.lr?"]
    (problem,) = schema.problems({"deep": 1})
    assert problem.near == ["extras.params.deep"]


def test_a_field_with_one_place_below_the_top_is_moved_there():
    params = {"type": "object", "properties": {"lr": {"type": "number"}}, "additionalProperties": False}
    extras = {"type": "object", "properties": {"params": params, "every": {"type": "integer"}}}
    other = {"type": "object", "properties": {"every": {"type": "integer"}}}
    properties = {"algo": {}, "extras": extras, "other": other}
    schema = ConfigSchema({"additionalProperties": False, "properties": properties})
    arranged, moved = schema.arrange({"algo": "ppo", "lr": 0.1})
    assert arranged == {"algo": "ppo", "extras": {"params": {"lr": 0.1}}}
    assert moved == ["config.lr belongs in config.extras.params.lr: it was moved there"]
    given_twice = {"lr": 0.1, "extras": {"params": {"lr": 0.2}}}
    for stays in ({"every": 1}, {"unknown": 1}, given_twice, {"lr": 0.1, "extras": 3}, {"algo": "ppo"}):
        assert schema.arrange(stays) == (stays, [])
    open_to_more = ConfigSchema({"properties": properties})
    assert open_to_more.arrange({"lr": 0.1}) == ({"lr": 0.1}, [])

    spec = RunSpec(worker="baseline", config={"lr": 0.1})
    warnings, checked = check_submission(spec, known_hosts(), {("baseline", "default", "f"): schema})
    assert warnings == moved
    assert checked.arranged(spec).config == {"extras": {"params": {"lr": 0.1}}}
    wrong = refusal(RunSpec(worker="baseline", config={"lr": "x"}), {("baseline", "default", "f"): schema})
    assert wrong.details.problems[0].field == "config.extras.params.lr"


def test_an_algorithm_that_does_not_run_here_and_an_unknown_environment_are_refused():
    algorithms = [{"name": "ppo", "runs": True}, {"name": "dqn", "runs": False, "needs": "runs in profile legacy"}]
    schema = ConfigSchema({}, algorithms, ["CartPole-v0", "CartPole-v1", "ALE/Pong-v5"])
    good = {"algo": "ppo", "env_id": "CartPole-v1", "stages": [{"env_id": "mine:My-v0"}, {"env_id": "ALE/Pong"}]}
    assert schema.problems(good) == []
    bad = schema.problems({"algo": "dqn", "env_id": "CartPol-v1", "stages": [{"env_id": "Nothing"}]})
    assert [each.field for each in bad] == ["config.algo", "config.env_id", "config.stages.0.env_id"]
    assert bad[0].message == "runs in profile legacy"
    assert bad[1].near[0] == "CartPole-v1"
    assert ConfigSchema({}).problems({"algo": "dqn", "env_id": "Nothing"}) == [], "the worker does not say"


def test_a_good_config_needs_no_run_id():
    schemas = {("baseline", "default", "f"): ConfigSchema(SCHEMA)}
    spec = RunSpec(worker="baseline", config={"env_id": "CartPole-v1"})
    assert check_submission(spec, known_hosts(), schemas) == ([], Checked([], "f"))


def test_a_broken_schema_does_not_stop_runs():
    schema = ConfigSchema({"type": "nonsense"})
    assert schema.broken
    assert said_of(schema, {"anything": 1}) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"required": None},
        {"required": 3},
        {"properties": None},
        {"properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"pattern": "("}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_broken_and_refuses_nothing(schema):
    made = ConfigSchema(schema)
    assert said_of(made, {"a": "text"}) == []
    assert made.broken
    assert said_of(made, {"a": 1}) == []


TWICE_THE_NEXT = {str(level): {"allOf": [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(40)}


@pytest.mark.parametrize(
    ("schema", "config"),
    [
        ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 40 + "!"}),
        ({"patternProperties": {"^(a+)+$": False}}, {"a" * 40 + "!": 1}),
        ({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {**TWICE_THE_NEXT, "40": {}}}, {"a": 1}),
    ],
)
def test_a_schema_that_takes_for_ever_to_check_is_broken_and_refuses_nothing(monkeypatch, schema, config):
    monkeypatch.setattr("mosaic_services.scheduler.schema._LONGEST_CHECK_S", 0.1)
    made = ConfigSchema(schema)
    assert said_of(made, config) == []
    assert made.broken == "TimeoutError: checking a config takes more than 0.1 s"


def test_a_pattern_is_checked_at_submission():
    made = ConfigSchema({"properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}})
    assert said_of(made, {"a": "B"}) == ["config.a: 'B' is not allowed; allowed: string, matching ^[a-z]+$"]
    assert said_of(made, {"a": "b"}) == []


def test_a_schema_in_another_document_is_never_fetched(monkeypatch):
    fetched = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *request, **_: fetched.append(request))
    made = ConfigSchema({"$ref": "http://127.0.0.1:9/schema.json"})
    assert said_of(made, {"a": 1}) == []
    assert made.broken
    assert not fetched


def test_a_configuration_that_cannot_be_checked_yet_is_accepted_with_a_warning():
    (host,) = known_hosts()
    environment = EnvironmentStatus(worker="stress", profile="default", status="available")
    state = HostState(host="local", total=Resources(cpus=2, memory_mb=4000), environments=[environment])
    host.report(state, 0.0)
    warnings, checked = check_submission(RunSpec(worker="stress"), [host], {})
    assert warnings == ["configuration is checked once the environment of stress/default is built"]
    assert not checked.fingerprint


def test_a_broken_schema_is_told_at_submission():
    schemas = {("baseline", "default", "f"): ConfigSchema({"$ref": "#"})}
    (warning,), _ = check_submission(RunSpec(worker="baseline"), known_hosts(), schemas)
    assert warning.startswith("configuration is not checked: the schema of baseline/default is unusable: RecursionErr")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"algo": "PPO", "env_id": "CartPole-v1", "seed": 1}, "ppo-cartpole-seed1"),
        ({"agent": "random", "env_id": "ALE/Breakout-v5"}, "random-breakout"),
        ({"env_id": "simple_spread_v3", "seed": 0}, "baseline-simple-spread-seed0"),
        ({"algo": 7, "seed": True}, "baseline"),
        ({}, "baseline"),
    ],
)
def test_names_are_made_from_the_configuration(config, name):
    assert make_name(RunSpec(worker="baseline", config=config)) == name


def runs(*ids_and_names):
    spec = RunSpec(worker="w")
    return {run: Run(run, seq, spec, name, 0.0, 0.0) for seq, (run, name) in enumerate(ids_and_names)}


def test_a_run_is_found_by_id_part_or_name():
    known = runs(("01K0000000000000000004K7QX", "ppo"), ("01K0000000000000000009ZD1M", "dqn"))
    assert find_run(known, "4k7qx").name == "ppo"
    assert find_run(known, "01k0000000000000000009zd1m").name == "dqn"
    assert find_run(known, "dqn").name == "dqn"


def test_a_part_of_an_id_that_fits_several_is_refused_with_candidates():
    known = runs(("01K0000000000000000004K7QX", "ppo"), ("01K0000000000000000009ZD1M", "ppo"))
    with pytest.raises(CommandRefusedError) as raised:
        find_run(known, "01k")
    assert raised.value.code == "ambiguous_run"
    assert raised.value.details.candidates == ["01K0000000000000000009ZD1M", "01K0000000000000000004K7QX"]


def test_a_shared_name_means_the_newest_or_the_only_active_run():
    known = runs(*((f"01K0000000000000000000000{number}", "ppo") for number in range(4)))
    oldest, second, third, newest = known.values()
    oldest.state = third.state = newest.state = RunStateName.SUCCEEDED
    assert match_run(known, "ppo") == (newest, 4)
    assert match_run(known, "ppo", active=True) == (second, 4)
    second.state = RunStateName.FAILED
    assert match_run(known, "ppo", active=True) == (newest, 4), "none is active: the caller says that it has ended"
    second.state = third.state = RunStateName.RUNNING
    with pytest.raises(CommandRefusedError) as raised:
        find_run(known, "ppo", active=True)
    assert (raised.value.code, raised.value.details.candidates) == ("ambiguous_run", [third.id, second.id])


@pytest.mark.parametrize("query", ["", "  ", "ppx", "%"])
def test_an_unknown_run_is_refused(query):
    with pytest.raises(CommandRefusedError) as raised:
        find_run(runs(("01K0000000000000000004K7QX", "ppo")), query)
    assert raised.value.code == "unknown_run"
