"""Round trips of an 84x84x4 observation between the arena and a policy. Runs in the arena's environment."""

import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from arena_worker.games import Turn
from arena_worker.process import PolicyProcess
from arena_worker.seats import PolicySeat
from gymnasium import spaces

_WARM_UP = 200


def main() -> None:
    """Print the median in microseconds."""
    use, folder, count = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    image = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    game = SimpleNamespace(
        action_spaces={"agent": spaces.Discrete(6)},
        observation_spaces={"agent": image},
        meanings={"agent": None},
        keys={},
        about=dict,
    )
    document = {"run_id": "image", "metadata": {"worker": {"config": {"agent": "passive"}}}, "checkpoint": None}
    process = PolicyProcess("passive", use["argv"], use["environ"], folder, document)
    try:
        seat = PolicySeat("passive", "agent", game, process, 1)  # type: ignore[arg-type]
        seat.join(0, 60)
        process.ask({"cmd": "begin_episode", "agent": "agent", "seed": 0, "episode": 0, "lane": 0}, 60)
        turn, times = Turn(image.sample(), None), []
        for _ in range(count + _WARM_UP):
            began = time.perf_counter()
            process.post(seat.request([0], [turn]), None, 60, "select_action")
            (answer,) = process.collect(60)
            seat.moves.legal(seat.decisions(answer[1], 1)[0].action, None)
            times.append(time.perf_counter() - began)
    finally:
        process.stop()
    print(json.dumps(1e6 * statistics.median(times[_WARM_UP:])))


if __name__ == "__main__":
    main()
