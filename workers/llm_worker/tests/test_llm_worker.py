"""Language models play through the arena: agents, faults, limits, cache and keys.

The provider is a fake, `chat_server.py`; everything else is real. The local model, which is no fake, is in
tests/test_llm_stack.py.
"""

import json
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from chat_server import KEY
from conftest import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GRID = "BabyAI-GoToRedBallNoDists-v0"
SHORT = {"max_steps": 5}
BOARD = {"family": "aec"}
RANDOM = {"worker": "random"}


def kinds(record):
    return [(failure["kind"], failure["then"]) for failure in record["failures"]]


def only(records):
    assert len(records) == 1, records
    return records[0]


def _cmdline(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_agents_play_grids_boards_teams_and_numbers_and_records_say_what_it_cost(arena, server, tmp_path):
    prices = tmp_path / "prices.toml"
    rates = "input = 2.0\noutput = 10.0\ncached_input = 0.5\n"
    prices.write_text(f'["good"]\n{rates}["secretive"]\n{rates}')
    grids = {name: arena.llm(server, agent=name, prices=str(prices)) for name in ("naive", "cot", "robust", "few_shot")}
    grids["text"] = arena.llm(server, agent="cot", structured="text", history=0)
    grids["secretive"] = arena.llm(server, "secretive", prices=str(prices))
    records, _ = arena.play("grid", GRID, grids, environment=SHORT, episodes=2)
    assert len(records) == 12
    for record in records:
        told = record["reports"]["agent"]
        assert record["failures"] == []
        assert told["decisions"] == told["answers"] == record["length"] == told["finish"]["stop"]
        model = "secretive" if record["lineup"] == "secretive" else "good"
        assert (told["model"], told["system_fingerprint"], told["invalid"]) == (f"{model}-2026", "fp_1", 0)
        if record["lineup"] not in {"text", "secretive"}:
            fresh = told["tokens_in"] - told["tokens_cached"]
            cost = (2 * fresh + 0.5 * told["tokens_cached"] + 10 * told["tokens_out"]) / 1e6
            assert told["cost_usd"] == pytest.approx(cost)
        else:
            assert told["cost_usd"] is None, "without a price, or the number of tokens, there is no cost"
    sides = {"player_1": "tools", "player_2": "random"}
    tools = {"tools": arena.llm(server, agent="tools"), "random": RANDOM}
    records, _ = arena.play("board", "tictactoe_v3", tools, {"game": sides}, environment=BOARD)
    for record in records:
        assert record["ended"] == "terminated"
        assert record["reports"]["player_1"]["answers"] == 2 * record["reports"]["player_1"]["decisions"]
    team = arena.llm(server, coordination="roles", roles={"agent_0": "cover the left"}, teammates="observations")
    spread = {"family": "parallel", "max_steps": 3}
    records, _ = arena.play("team", "simple_spread_v3", {"team": team}, environment=spread, episodes=1)
    assert set(only(records)["reports"]) == {"agent_0", "agent_1", "agent_2"}
    said = json.dumps(server.stats()["bodies"])
    assert "cover the left" in said
    assert "In the step before, your teammate agent_1 did" in said
    records, _ = arena.play("numbers", "Pendulum-v1", {"llm": arena.llm(server)}, environment=SHORT, episodes=1)
    assert only(records)["failures"] == []
    records, _ = arena.play("map", "FrozenLake-v1", {"llm": arena.llm(server)}, environment=SHORT, episodes=1)
    assert only(records)["failures"] == []
    assert "SFFF\\nFHFH\\nFFFH\\nHFFG" in json.dumps(server.stats()["bodies"])


def test_records_do_not_depend_on_lanes_and_a_rerun_makes_no_call(arena):
    own = Server()
    try:
        play = {"environment": SHORT, "episodes": 6}
        operators = {
            "llm": arena.llm(own, temperature=1.0, concurrency={"start": 1}),
            "cot": arena.llm(own, agent="cot", concurrency={"start": 1}),  # it shares the gate of the first
            "plain": arena.llm(own, "no-schema"),
        }
        first, _ = arena.play("first", GRID, operators, lanes=6, **play)
        seen = own.stats()
        assert seen["answered"] == sum(record["reports"]["agent"]["answers"] for record in first)
        assert [record["failures"] for record in first] == [[]] * 18
        assert (arena.folder / "first" / "printed.txt").read_text().count("takes no schema for model no-schema") == 1
        counters = json.loads(next((arena.shared / "counters").glob("*-good-*.json")).read_text())
        assert counters["window"] > 1, "it has grown while calls waited"
        again, _ = arena.play("again", GRID, operators, lanes=1, **play)
        assert again == first
        assert own.stats()["requests"] == seen["requests"]
        team = {"team": arena.llm(own, teammates="observations")}
        play_team = {"environment": {"family": "parallel", "max_steps": 4}, "episodes": 4}
        team_first, _ = arena.play("team", "simple_spread_v3", team, lanes=4, **play_team)
        asked = own.stats()["requests"]
        team_again, _ = arena.play("team-again", "simple_spread_v3", team, lanes=1, **play_team)
        assert team_again == team_first, "the answer of a teammate to the same step is never shown, however fast it is"
        assert own.stats()["requests"] == asked
    finally:
        own.close()
    gone, _ = arena.play("gone", GRID, operators, **play)
    assert gone == first, "the cache needs no endpoint at all"


def test_faults_that_pass_cost_time_and_lose_nothing(arena, server):
    models = ("storm", "shaky", "garbled", "hanging-up", "slow")
    operators = {model: arena.llm(server, model) for model in models}
    # On a busy machine good answers may take longer than that, too: with more tries, they only cost time.
    operators["slow"] = arena.llm(server, "slow", timeout_s=1, tries=20)
    records, _ = arena.play("play", GRID, operators, environment={"max_steps": 2}, episodes=4)
    assert [(record["ended"], record["failures"]) for record in records] == [("max_steps", [])] * 20
    for model in models:
        counted = "throttled" if model == "storm" else "failed"
        told = [record["reports"]["agent"][f"{counted}_calls"] for record in records if record["lineup"] == model]
        assert sum(told) >= 3, model
        counters = json.loads(next((arena.shared / "counters").glob(f"*{model}-*.json")).read_text())
        assert counters[counted] >= 3, "what `mosaic stats` shows"
        assert counters["cuts"] >= 1


def test_faults_that_last_end_as_declared(arena, server):
    """Before the first answer, the operator is refused; after it, single decisions fail."""
    operators = {
        **{model: arena.llm(server, model, tries=2) for model in ("down", "garbled-always", "dying")},
        "jammed": arena.llm(server, "jammed", patience_s=2),
        "prudish": arena.llm(server, "prudish"),
    }
    rules = {"failures": {"retry": 1, "then": "noop"}, "environment": {"max_steps": 2}}
    records, _ = arena.play("play", GRID, operators, episodes=1, **rules)
    found = {record["lineup"]: record["failures"] for record in records}
    for model, told in (("down", "answered 503"), ("garbled-always", "no reply")):
        assert only(found[model])["kind"] == "refused"
        assert told in found[model][0]["message"]
        assert "tried 2 times" in found[model][0]["message"]
    assert kinds({"failures": found["dying"]}) == [("endpoint", "retry"), ("endpoint", "noop")]
    assert "tried 2 times" in found["dying"][-1]["message"]
    assert found["jammed"][-1]["kind"] == "endpoint"
    assert "within patience_s (2 s)" in found["jammed"][-1]["message"]
    assert kinds({"failures": found["prudish"]}) == [("endpoint", "retry")], "the next question was answered"
    assert "content filtering" in found["prudish"][0]["message"]
    assert {record["ended"] for record in records if record["lineup"] in {"dying", "jammed", "prudish"}} == {
        "max_steps"
    }


_ASK = """
import asyncio, json, os, sys, time
from pathlib import Path
from llm_worker.caller import Caller
from llm_worker.config import LlmConfig
from llm_worker.exchange import Message, Question
from llm_worker.keys import read_key

def ask(model, **more):
    where = {"endpoint": "vllm", "base_url": sys.argv[1], "key_env": "CHAT_KEY"}
    config = LlmConfig(run_id="r", model=model, **where, **more)
    caller = Caller(config, read_key(config, os.environ), shared)
    return caller, caller.ask(Question((Message("user", "?"),)), time.monotonic() + config.patience_s)

shared = Path(sys.argv[2])
"""

_REST = """
async def main():
    caller, answer = ask("resting")
    asking = asyncio.create_task(answer)
    state = {"throttled": 0}
    while not state["throttled"] and not asking.done():
        await asyncio.sleep(0.01)
        state = json.loads(next((shared / "counters").glob("*.json")).read_text() or '{"throttled": 0}')
    print(state["state"]["paused_until"] - time.time())
    asking.cancel()

asyncio.run(main())
"""

_PRESS = """
async def main():
    asked = [ask(model, patience_s=1.5) for model in ("storm-now", "storm-past")]
    ended = await asyncio.gather(*(answer for _, answer in asked), return_exceptions=True)
    print(json.dumps([[caller.calls, error.kind] for (caller, _), error in zip(asked, ended)]))

asyncio.run(main())
"""


def call(arena, server, built, code):
    """Run code with the caller of the worker; return what it prints."""
    found = built("llm")
    environ = {**arena.environ, "PYTHONPATH": found["site"]}
    command = [found["python"], "-c", _ASK + code, server.address, str(arena.shared)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_long_retry_after_is_honoured(arena, server, built):
    assert 700 < call(arena, server, built, _REST) <= 900, "the server asked for 900 seconds"


def test_a_retry_after_of_no_time_is_no_reason_to_call_without_a_pause(arena, server, built):
    for calls, kind in call(arena, server, built, _PRESS):
        assert 1 <= calls <= 4
        assert kind == "endpoint"


def test_each_decision_carries_the_models_words(arena, server, built, tmp_path):
    found = built("llm")
    space = {"type": "Discrete", "n": 2, "start": 0}
    requests = [
        {"cmd": "init_agent", "observation_space": space, "action_space": space, "seed": 1, "lanes": 8},
        {"cmd": "select_action", "observation": 1, "lane": 0, "id": 7, "step": 0},
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    said = {}
    for model, agent in (("good", "cot"), ("illegal", "robust")):
        config = arena.llm(server, model, agent=agent, retries=1)["config"]
        path = tmp_path / f"{model}.json"
        path.write_text(json.dumps({"run_id": "r1", "metadata": {"worker": {"config": config}}}))
        command = [found["python"], "-m", "llm_worker.cli", "--config", str(path), "--interactive"]
        environ = {**arena.environ, "PYTHONPATH": found["site"], "MOSAIC_RUN_DIR": str(tmp_path)}
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            process.stdin.write(lines)
            process.stdin.flush()
            said[model] = next(reply for reply in map(json.loads, process.stdout) if reply.get("id") == 7)
            process.stdin.write('{"cmd": "stop"}\n')
            process.stdin.close()
            process.stdout.read()
    assert said["good"]["type"] == "action"
    assert json.loads(said["good"]["said"])["thoughts"] == "I think."
    assert said["illegal"]["type"] == "error"
    assert said["illegal"]["said"] == "\n".join(['{"action": "fly away"}'] * 2)


@pytest.mark.parametrize("then", ["forfeit", "fail", "random_legal", "noop"])
def test_answers_that_are_no_legal_action_end_as_declared(arena, server, then):
    known = {
        "illegal": ("illegal", "naive", "invalid"),
        "illegal-robust": ("illegal", "robust", "invalid"),
        "cut-off": ("cut-off", "naive", "truncated"),
        "refusing": ("refusing", "naive", "refusal"),
        "wrong-tools": ("wrong-tools", "tools", "invalid"),
    }
    operators = {
        name: arena.llm(server, model, agent=agent, retries=1, tool_turns=2)
        for name, (model, agent, _) in known.items()
    }
    rules = {"failures": {"retry": 1, "then": then}, "environment": {"max_steps": 2}}
    records, _ = arena.play("play", GRID, operators, episodes=1, **rules)
    ended = {"forfeit": "forfeit", "fail": "failed"}.get(then, "max_steps")
    for record in records:
        model, agent, kind = known[record["lineup"]]
        steps = 2 if ended == "max_steps" else 1
        assert record["ended"] == ended
        assert kinds(record) == [(kind, "retry"), (kind, then)] * steps
        told = record["reports"]["agent"]
        assert told["answers"] == told["invalid"] == 2 * steps * (1 if agent == "naive" else 2)
        assert told["refusals"] == (told["answers"] if model == "refusing" else 0)


def test_an_illegal_answer_is_corrected_by_the_robust_agent_and_by_tools(arena, server):
    robust = {"llm": arena.llm(server, "illegal-at-first", agent="robust")}
    record = only(arena.play("robust", GRID, robust, environment=SHORT, episodes=1)[0])
    told = record["reports"]["agent"]
    assert record["failures"] == []
    assert told["invalid"] == told["decisions"] == 5
    clumsy = {"llm": arena.llm(server, "clumsy", agent="tools"), "random": RANDOM}
    sides = {"game": {"player_1": "llm", "player_2": "random"}}
    record = only(arena.play("clumsy", "tictactoe_v3", clumsy, sides, environment=BOARD, episodes=1)[0])
    assert record["failures"] == []
    assert record["reports"]["player_1"]["invalid"] == 3 * record["reports"]["player_1"]["decisions"]


def test_bad_input_is_named_with_what_to_do(arena, server, tmp_path):
    arena.environ["WRONG_KEY"] = "sk-wrong-0123456789"
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "turn.txt").write_text("You see $everything.")
    nowhere = {"endpoint": "vllm", "base_url": "http://127.0.0.1:9/v1", "model": "m", "tries": 2}
    elsewhere = {**arena.llm(server)["config"], "base_url": "http://192.0.2.1/v1"}
    cases = {
        "dead": ({"worker": "llm", "config": nowhere}, "is the endpoint running"),
        "wrong-key": (arena.llm(server, key_env="WRONG_KEY"), "check the key in WRONG_KEY"),
        "no-key": (arena.llm(server, key_env="NO_KEY"), "NO_KEY is not set"),
        "model": (arena.llm(server, "unknown-9"), "check model ('unknown-9')"),
        "blind": (arena.llm(server, "blind", vision=True), "set vision: false"),
        "context": (arena.llm(server, "short-sighted", role="x" * 4000), "shorter history"),
        "schema": (arena.llm(server, "no-schema", structured="schema"), "structured: text"),
        "poor": (arena.llm(server, "poor"), "add credit"),
        "broke": (arena.llm(server, "broke"), "add credit"),
        "spent-out": (arena.llm(server, "spent-out"), "add credit"),
        "usage": (arena.llm(server, "secretive", limits={"experiment": {"tokens": 10**6}}), "cannot hold"),
        "key-env": (arena.llm(server, key_env="sk-wrong-0123456789"), "no name of a variable"),
        "url": (arena.llm(server, base_url="https://u:sk-wrong@host/v1"), "must hold no user"),
        "key": (arena.llm(server, api_key="sk-wrong-0123456789"), "unknown field"),
        "agent": (arena.llm(server, agent="robsut"), "'robust'"),
        "local": ({"worker": "llm", "config": {}}, "profile: local"),
        "plain": ({"worker": "llm", "config": elsewhere}, "not encrypted"),
        "cache": (arena.llm(server, "never-asked", cache="only"), "cache has no reply"),
        "template": (arena.llm(server, templates=str(templates)), "$everything"),
        "price": (arena.llm(server, limits={"episode": {"usd": 1}}), "usd needs the model's price"),
    }
    operators = {name: operator for name, (operator, _) in cases.items()}
    records, _ = arena.play("play", GRID, {**operators, "random": RANDOM}, episodes=2, environment=SHORT)
    assert [record["ended"] for record in records if record["lineup"] == "random"] == ["max_steps"] * 2
    for name, (_, told) in cases.items():
        failures = [only(record["failures"]) for record in records if record["lineup"] == name]
        assert [failure["kind"] for failure in failures] == ["refused"] * 2, name
        assert told in failures[0]["message"], (name, failures[0]["message"])
        assert "sk-wrong" not in failures[0]["message"]


def test_pictures_and_own_templates_reach_the_model(arena, server, tmp_path):
    templates = tmp_path / "templates"
    shutil.copytree(Path(__file__).parents[1] / "llm_worker" / "templates", templates)
    (templates / "turn.txt").write_text("HERE AND NOW: $observation\nLegal actions:\n$actions")
    (templates / "examples-babyai.json").write_text('[{"observation": "An own example.", "action": "drop"}]')
    operator = arena.llm(server, "seeing", vision=True, agent="few_shot", templates=str(templates))
    record = only(arena.play("see", GRID, {"llm": operator}, environment={"max_steps": 4}, episodes=1)[0])
    assert record["failures"] == []
    last = next(body for body in reversed(server.stats()["bodies"]) if body["model"] == "seeing")
    assert last["messages"][1:3] == [
        {"role": "user", "content": "An own example."},
        {"role": "assistant", "content": '{"action": "drop"}'},
    ]
    assert len(last["messages"]) == 3 + 2 * 3 + 1, "the three turns before are shown, too"
    text, picture = last["messages"][-1]["content"]
    assert text["text"].startswith("HERE AND NOW: Your mission: go to the red ball.")
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


def test_anthropics_dialect(arena, server):
    where = {"endpoint": "anthropic", "base_url": server.address, "key_env": "CHAT_KEY", "model": "good"}
    operators = {
        agent: {"worker": "llm", "config": {**where, "agent": agent}} for agent in ("naive", "cot", "robust", "tools")
    }
    mute = {**where, "agent": "robust", "structured": "text", "model": "mute-at-first"}
    operators["mute"] = {"worker": "llm", "config": mute}
    records, _ = arena.play("play", GRID, operators, environment=SHORT, episodes=1)
    assert [record["failures"] for record in records] == [[]] * 5
    assert all(record["reports"]["agent"]["tokens_cached"] for record in records)
    told = next(record["reports"]["agent"] for record in records if record["lineup"] == "mute")
    assert told["invalid"] == told["decisions"] == 5, "an empty answer is sent back as any other"


def test_limits_of_an_episode_hold(arena, server):
    limit = {"episode": {"turns": 3}}
    operators = {"llm": arena.llm(server, limits=limit)}
    rules = {"failures": {"then": "noop"}, "environment": SHORT}
    record = only(arena.play("episode", GRID, operators, episodes=1, **rules)[0])
    assert kinds(record) == [("limit", "noop")] * 2
    assert record["reports"]["agent"]["answers"] == 3


def test_a_budget_of_an_experiment_holds_over_processes_that_play_it_at_once(arena, server, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text('["usd"]\ninput = 1.0\noutput = 1.0\n')
    budgets = {"turns": 20, "tokens": 10_000, "usd": 0.01}
    spent = {
        name: arena.llm(server, name, limits={"experiment": {name: most}}, prices=str(prices))
        for name, most in budgets.items()
    }
    options = {"episodes": 10, "code": 1, "lanes": 4, "environment": SHORT}
    with ThreadPoolExecutor() as pool:
        playing = [  # with seeds of their own, else the second would find the replies of the first
            pool.submit(arena.play, name, GRID, {**spent, "random": RANDOM}, seeds={"root": root}, **options)
            for root, name in enumerate(("one", "other"))
        ]
        played = [each.result() for each in playing]
    ended = Counter(record["lineup"] for records, _ in played for record in records)
    assert ended.pop("random") == 20
    assert set(ended) <= set(budgets), "a budget may be used up before an episode has ended"
    assert all(count < 20 for count in ended.values())
    for name, most in budgets.items():
        assert all(f"of {most:g} {name} are used up" in printed for _, printed in played)
        bill = server.stats()["billed"][name]
        used = {"turns": bill["calls"], "tokens": bill["tokens"], "usd": bill["tokens"] / 1e6}[name]
        call = {"turns": 1, "tokens": bill["most"], "usd": bill["most"] / 1e6}[name]
        assert most <= used <= most + 8 * call, "not exceeded by more than the calls under way, four for each process"


def test_the_key_is_nowhere(arena, server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{KEY}\n")
    del arena.environ["CHAT_KEY"]
    arena.environ["CHAT_KEY_FILE"] = str(secret)
    arena.play("play", GRID, {"llm": arena.llm(server), "bad": arena.llm(server, "unknown-1")}, environment=SHORT)
    files = [path for path in arena.folder.rglob("*") if path.is_file() and path != secret]
    assert any(path.name == "replies.db" for path in files)
    assert [str(path) for path in files if KEY.encode() in path.read_bytes()] == []
    mark = str(arena.folder).encode()
    left = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _cmdline(path)]
    assert left == [], "every process has ended"
    with closing(sqlite3.connect(next(path for path in files if path.name == "replies.db"))) as store:
        assert store.execute("SELECT count(*) FROM replies").fetchone()[0] > 0


def test_the_compliance_suite_passes(built, tmp_path):
    found = built("llm")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
    done = subprocess.run(
        [found["python"], "-m", "mosaic_worker.check", "llm", "--json"],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": found["site"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )
    report = json.loads(done.stdout)
    assert {check["id"]: check["reason"] for check in report["checks"] if check["status"] == "fail"} == {}
    passed = {check["id"] for check in report["checks"] if check["status"] == "pass"}
    assert {"run", "same-seed", "sigterm", "interactive-agent", "interactive-lanes"} <= passed


def test_descriptions_say_what_real_environments_know(built, tmp_path):
    found = built("arena")
    command = [found["python"], str(Path(__file__).with_name("compare_sights.py"))]
    sites = os.pathsep.join([found["site"], built("llm")["site"]])
    environ = {**os.environ, "PYTHONPATH": sites, "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=560)
    assert done.returncode == 0, done.stderr
    compared = json.loads(done.stdout.splitlines()[-1])
    assert {"chess", "chess moves", "tictactoe_v3", "connect_four_v3", "go_v5", "grid", "simple_spread_v3"} <= set(
        compared
    )
    small = {name: compared.pop(name) for name in ("maps", "others")}
    assert small == {"maps": 4, "others": 10}
    assert min(compared.values()) > 40


def test_processes_share_what_an_endpoint_allows(arena):
    slow = Server("--latency", "0.3")
    try:
        few = arena.llm(slow, concurrency={"start": 3, "most": 3})
        with ThreadPoolExecutor() as pool:
            playing = []
            for number, name in enumerate(("one", "other")):
                seeds = {"root": number}  # else the second would find the replies of the first
                options = {"environment": {"max_steps": 3}, "episodes": 6, "lanes": 6, "seeds": seeds}
                playing.append(pool.submit(arena.play, name, GRID, {"llm": few}, **options))
            for each in playing:
                each.result()
        assert [len(arena.records(arena.folder / name)) for name in ("one", "other")] == [6, 6]
        seen = slow.stats()
        assert seen["answered"] == 36
        assert seen["most_at_once"] == 3, "two processes with six episodes each"
    finally:
        slow.close()
