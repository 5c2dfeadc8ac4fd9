"""Compares what describers say with what real environments know. Runs in the arena's environment; prints counts."""

import json
import re
import sys

import gymnasium
import minigrid  # noqa: F401 - registers its environments
import numpy as np
from mpe2 import (
    simple_crypto_v3,
    simple_push_v3,
    simple_reference_v3,
    simple_speaker_listener_v4,
    simple_spread_v3,
    simple_tag_v3,
    simple_world_comm_v3,
)
from pettingzoo.classic import chess_v6, connect_four_v3, go_v5, tictactoe_v3

from llm_worker.sights import Scene, describer_of
from mosaic_worker.spaces import space_to_json

COUNTS = {}
_BALL = re.compile(r"a red ball (?:(\d+) steps? forward)?(?: and )?(?:(\d+) steps? to the (left|right))?")


def same(what, said, known):
    """Count a comparison, and stop at one that fails."""
    COUNTS[what] = COUNTS.get(what, 0) + 1
    if said != known:
        sys.exit(f"{what}: said\n{said}\nknown\n{known}")


def scene(env_id, env, agent, agents, **more):
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    found = {name: space_to_json(each(agent) if callable(each) else each) for name, each in spaces.items()}
    if "observation" in found["observation_space"].get("spaces", {}):
        found["observation_space"] = found["observation_space"]["spaces"]["observation"]
    return Scene(env_id, agent, agents, **found, **more)


def chess_board(game, agent):
    board = game.board if agent == "player_0" else game.board.mirror()
    rows = str(board).splitlines()
    lines = ["The board:", *(f"{8 - place} {row}" for place, row in enumerate(rows)), "  a b c d e f g h"]
    return "\n".join(lines)


def chess():
    env = chess_v6.env()
    generator = np.random.default_rng(1)
    env.reset(seed=1)
    describers = {
        agent: describer_of(scene("chess_v6", env, agent, env.possible_agents)) for agent in env.possible_agents
    }
    for _ in range(300):
        if not env.agents:
            env.reset()
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        agent = env.agent_selection
        game = env.unwrapped
        same("chess", describers[agent].text(observation["observation"]), chess_board(game, agent))
        board = game.board if agent == "player_0" else game.board.mirror()
        legal = {describers[agent].names[index] for index in np.flatnonzero(observation["action_mask"])}
        same("chess moves", legal, {move.uci().removesuffix("q") for move in board.legal_moves})
        env.step(int(generator.choice(np.flatnonzero(observation["action_mask"]))))


def marks(env_id, env, cells, plies=120):
    generator = np.random.default_rng(1)
    env.reset(seed=1)
    for _ in range(plies):
        if not env.agents:
            env.reset()
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            env.step(None)
            continue
        agent = env.agent_selection
        describer = describer_of(scene(env_id, env, agent, env.possible_agents))
        text = describer.text(observation["observation"])
        drawn = [line.split(":")[-1] for line in text.splitlines() if re.search(r"[.XO]( [.XO])+$", line)]
        same(env_id, [row.split() for row in drawn], cells(env.unwrapped, env.possible_agents.index(agent)))
        env.step(int(generator.choice(np.flatnonzero(observation["action_mask"]))))


def mark(owner, me):
    return "." if owner is None else "X" if owner == me else "O"


def tictactoe_cells(game, me):
    owners = [square - 1 if square else None for square in game.board.squares]
    return [[mark(owners[3 * column + row], me) for column in range(3)] for row in range(3)]


def connect_cells(game, me):
    return [[mark(cell - 1 if cell else None, me) for cell in row] for row in np.reshape(game.board, (6, 7)).tolist()]


def go_cells(game, me):
    board = game._go.board
    return [[mark(None if not cell else 0 if cell == 1 else 1, me) for cell in row] for row in board.tolist()]


def grids():
    env = gymnasium.make("BabyAI-GoToRedBallNoDists-v0")
    generator = np.random.default_rng(1)
    for episode in range(20):
        observation, _ = env.reset(seed=episode)
        describer = describer_of(scene("BabyAI-GoToRedBallNoDists-v0", env, None, []))
        for _ in range(15):
            inner = env.unwrapped
            (ball,) = [
                cell
                for cell in np.ndindex(inner.width, inner.height)
                if getattr(inner.grid.get(*cell), "type", "") == "ball"
            ]
            away = np.subtract(ball, inner.agent_pos)
            forward, right = int(away @ inner.dir_vec), int(away @ inner.right_vec)
            said = re.search(
                r"a red ball (?:(\d+) steps? forward)?(?: and )?(?:(\d+) steps? to the (left|right))?",
                describer.text(observation),
            )
            if inner.agent_sees(*ball):
                sideways = int(said[2] or 0) * (-1 if said[3] == "left" else 1)
                same("grid", (int(said[1] or 0), sideways), (forward, right))
            else:
                same("grid", said, None)
            observation, _, terminated, truncated, _ = env.step(int(generator.integers(3)))
            if terminated or truncated:
                break


def teams():
    for module, env_id in ((simple_spread_v3, "simple_spread_v3"), (simple_tag_v3, "simple_tag_v3")):
        env = module.parallel_env(max_cycles=20)
        observations, _ = env.reset(seed=1)
        for _ in range(10):
            world = env.unwrapped.world
            bodies = {agent.name: agent for agent in world.agents}
            for name, seen in observations.items():
                text = describer_of(scene(env_id, env, name, env.possible_agents)).text(seen)
                me = bodies[name].state.p_pos
                for other in env.possible_agents:
                    if other != name:
                        x, y = bodies[other].state.p_pos - me
                        sides = "right" if x > 0 else "left", "up" if y > 0 else "down"
                        told = re.search(
                            rf"^{other} is ([\d.e-]+) to the (\w+) and ([\d.e-]+) (\w+) of you", text, re.MULTILINE
                        )
                        same(env_id, (told[2], told[4]), sides)
                        same(env_id, abs(float(told[1]) - abs(x)) < 0.01 * max(1, abs(x)), True)
            observations, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})


def talking(module, env_id, known):
    """Compare a whole text with what the world knows."""
    env = module.parallel_env(max_cycles=20)
    observations, _ = env.reset(seed=1)
    for _ in range(12):
        world = env.unwrapped.world
        bodies = {agent.name: agent for agent in world.agents}
        for name, seen in observations.items():
            described = describer_of(scene(env_id, env, name, env.possible_agents))
            text = described.text(seen)
            same(env_id, [line for line in known(world, bodies, name) if line not in text.splitlines()], [])
            same(env_id, "[" in text, False)
        actions = {agent: int(env.action_space(agent).sample()) for agent in env.agents}
        says = {agent: describer_of(scene(env_id, env, agent, env.possible_agents)).names for agent in env.agents}
        observations, *_ = env.step(actions)
        for agent, action in actions.items():
            if not bodies[agent].silent and says[agent] is not None:
                word = re.match(r"say (\d+)", says[agent][action])[1]
                same(env_id, int(word), int(np.argmax(bodies[agent].state.c)))


def heard(who, speaker):
    return f"{who} said {f'word {np.argmax(speaker.state.c)}' if speaker.state.c.any() else 'nothing yet'}."


def color(goal):
    return ("red", "green", "blue")[int(np.argmax(goal.color))]


def push(world, bodies, name):
    if name.startswith("adversary"):
        return []
    goal = world.agents[1].goal_a
    marks = [f"The color of landmark {n} is {color(mark)}." for n, mark in enumerate(world.landmarks, 1)]
    return [f"The color of your goal is {color(goal)}.", *marks]


def reference(world, bodies, name):
    (other,) = (agent for agent in bodies if agent != name)
    return [
        f"The color of the goal of {other} is {color(bodies[name].goal_b)}.",
        heard(f"{other[0].upper()}{other[1:]}", bodies[other]),
    ]


def speaker(world, bodies, name):
    if name.startswith("speaker"):
        return [f"The color of the goal of the listener is {color(bodies[name].goal_b)}."]
    return [heard("The speaker", bodies["speaker_0"])]


def crypto(world, bodies, name):
    alice = bodies["alice_0"]
    key, message = f"The key is word {np.argmax(alice.key)}.", f"The message is word {np.argmax(alice.goal_a.color)}."
    return {"alice_0": [message, key], "bob_0": [key, heard("Alice", alice)]}.get(name, [heard("Alice", alice)])


def world_comm(world, bodies, name):
    me, found = bodies[name], []
    for number, forest in enumerate(world.forests, 1):
        near = np.linalg.norm(me.state.p_pos - forest.state.p_pos) < me.size + forest.size
        found.append(f"You are {'in' if near else 'not in'} forest {number}.")
    if "adversary" in name:
        found.append(heard("The lead adversary", bodies["leadadversary_0"]))
    return found


def maps():
    for env_id in ("FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v3", "CliffWalking-v1"):
        env = gymnasium.make(env_id)
        inner = env.unwrapped
        drawn = ["".join(cell.decode() for cell in row) for row in getattr(inner, "desc", ())]
        rules = describer_of(scene(env_id, env, None, [], map=drawn)).rules.splitlines()
        if drawn:
            same("maps", rules[-len(drawn) :], drawn)
        else:
            cliff = ["".join("C" if cell else "." for cell in row) for row in inner._cliff]
            same("maps", [row.replace("S", ".").replace("G", ".") for row in rules[-4:]], cliff)


def others():
    """Environments that no describer knows: their space is described, and large observations are shown coarsely."""
    spaces = gymnasium.spaces
    picture = np.zeros((64, 64, 3), np.uint8)
    picture[:16, :4] = 255
    for space, seen, rule, lines in (
        (spaces.Box(-1, 1, (3,)), np.ones(3), "3 numbers, from -1 to 1", ["You observe: [1, 1, 1]"]),
        (
            spaces.Box(0, 255, (64, 64, 3), np.uint8),
            picture,
            "the shape 64x64x3, from 0 to 255",
            [" ".join(["255", *["0"] * 15])] * 4,
        ),
        (
            spaces.Box(np.array([-1.0, -2.0]), np.array([1.0, np.inf])),
            np.zeros(2),
            "2 numbers, from [-1, -2] to [1, inf]",
            ["You observe: [0, 0]"],
        ),
        (spaces.Discrete(7), 3, "a whole number from 0 to 6", ["You observe: 3"]),
        (
            spaces.Dict({"a": spaces.MultiBinary(2)}),
            {"a": np.array([1, 0])},
            "a: 2 numbers, each 0 or 1",
            ["You observe: a: [1, 0]"],
        ),
    ):
        known = Scene("own/Thing-v0", "agent", observation_space=space_to_json(space), doc="A thing.")
        describer = describer_of(known)
        same("others", (rule in describer.rules, describer.rules.startswith("A thing.")), (True, True))
        text = describer.text(seen).splitlines()
        same("others", text[1 if len(text) > 1 else 0 :][: len(lines)], lines)


chess()
marks("tictactoe_v3", tictactoe_v3.env(), tictactoe_cells)
marks("connect_four_v3", connect_four_v3.env(), connect_cells)
marks("go_v5", go_v5.env(board_size=5), go_cells)
grids()
teams()
talking(simple_push_v3, "simple_push_v3", push)
talking(simple_reference_v3, "simple_reference_v3", reference)
talking(simple_speaker_listener_v4, "simple_speaker_listener_v4", speaker)
talking(simple_crypto_v3, "simple_crypto_v3", crypto)
talking(simple_world_comm_v3, "simple_world_comm_v3", world_comm)
maps()
others()
print(json.dumps(COUNTS))
