"""Compares what describers say with what real environments know. Runs in the arena's environment; prints counts."""

import json
import re
import sys

import gymnasium
import minigrid  # noqa: F401 - registers its environments
import numpy as np
from mpe2 import simple_spread_v3, simple_tag_v3
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


chess()
marks("tictactoe_v3", tictactoe_v3.env(), tictactoe_cells)
marks("connect_four_v3", connect_four_v3.env(), connect_cells)
marks("go_v5", go_v5.env(board_size=5), go_cells)
grids()
teams()
print(json.dumps(COUNTS))
