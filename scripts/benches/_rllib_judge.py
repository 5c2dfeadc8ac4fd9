"""Play fixed episodes with a trained RLlib policy and an untrained one, in the worker's environment.

Arguments: the folder of a training (with worker.json and checkpoints), the first seed, episodes, and `game` if the
policy plays against random opponents, on each side in turn. Prints JSON: returns of each, or wins, draws and games.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ray_worker import EvaluationConfig, RayPolicyConfig, RayPolicyController, create_ray_actor, run_evaluation
from ray_worker.config import RayWorkerConfig
from ray_worker.policy_actor import RandomActor
from ray_worker.untrained import untrained_actor

from mosaic_worker.spaces import space_from_json


def main() -> None:
    """Entry point."""
    folder, seed, episodes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config = RayWorkerConfig(**json.loads((folder / "worker.json").read_text()))
    trained = create_ray_actor(RayPolicyConfig(str(folder), seed=seed))
    untrained = untrained_actor(config, config.seed or 0)
    actions = {agent: space_from_json(space) for agent, space in trained.about.action_spaces.items()}
    anyone = RandomActor(actions, seed)

    def returns(actor: Any) -> list[float]:
        return run_evaluation(EvaluationConfig(actor, episodes, seed)).returns

    def games(actor: Any) -> dict[str, int]:
        wins = draws = 0
        for place in actor.agents:
            players = {agent: actor if agent == place else anyone for agent in actor.agents}
            results = run_evaluation(EvaluationConfig(RayPolicyController(players), episodes, seed))
            wins += sum(episode.winners == (place,) for episode in results.episodes)
            draws += sum(episode.winners == () for episode in results.episodes)
        return {"wins": wins, "draws": draws, "games": episodes * len(actor.agents)}

    if sys.argv[4:] == ["game"]:
        print(json.dumps({"trained": games(trained), "untrained": games(untrained)}))
        return
    print(json.dumps({"trained": returns(trained), "untrained": returns(untrained)}))


if __name__ == "__main__":
    main()
