"""The league of SELF_PLAY: frozen copies of the learner, and when the next copy is frozen.

Every copy has its place from the start, as an RLModule that never learns. At first all are copies of the untrained
learner; each snapshot overwrites the oldest. So the mapping of agents to modules never changes, and RLlib's own
checkpoint holds the whole league.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from ray.rllib.core import COMPONENT_RL_MODULE

from ray_worker.config import SelfPlayConfig
from ray_worker.policies import MAIN, frozen_name

__all__ = ["League"]


class League:
    """Counts games against the frozen copies, and freezes a copy when the learner has outgrown them."""

    def __init__(self, settings: SelfPlayConfig, state: Mapping[str, Any] | None = None) -> None:
        """Begin, or continue from the state of a checkpoint."""
        self._settings = settings
        self._games: deque[float] = deque(maxlen=settings.snapshot_games)
        self._by_copy: dict[str, deque[float]] = {}
        self.snapshots = int(state["snapshots"]) if state else 0
        self.steps: dict[str, int] = dict(state["steps"]) if state else {}
        """The step at which each copy was frozen."""

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; RLlib keeps the weights."""
        return {"snapshots": self.snapshots, "steps": self.steps}

    def count(self, returns: Mapping[str, float], modules: Mapping[str, str]) -> None:
        """Count a game between the learner and frozen copies: 1 for a win, half for a draw."""
        seats = Counter(modules.values())
        if seats[MAIN] != 1 or len(modules) < 2:  # noqa: PLR2004 - the learner played against itself
            return
        me = next(agent for agent, module in modules.items() if module == MAIN)
        best = max(value for agent, value in returns.items() if agent != me)
        score = 1.0 if returns[me] > best else 0.5 if returns[me] == best else 0.0
        self._games.append(score)
        for name in set(modules.values()) - {MAIN}:
            self._by_copy.setdefault(name, deque(maxlen=self._settings.snapshot_games)).append(score)

    def figures(self) -> dict[str, float]:
        """What is reported: the share of points that the learner won, in all and against each copy."""
        found = {f"win_rate/{name}": sum(scores) / len(scores) for name, scores in sorted(self._by_copy.items())}
        if self._games:
            found["win_rate"] = sum(self._games) / len(self._games)
        return {**found, "league_snapshots": float(self.snapshots)}

    def fill(self, algorithm: Any) -> None:
        """Make every copy one of the untrained learner."""
        names = [frozen_name(number) for number in range(self._settings.league_size)]
        _copy(algorithm, names)
        self.steps = dict.fromkeys(names, 0)

    def grow(self, algorithm: Any, step: int) -> str | None:
        """Freeze a copy if the learner wins often enough; return its name."""
        games, wanted = self._games, self._settings
        if len(games) < wanted.snapshot_games or sum(games) / len(games) < wanted.snapshot_win_rate:
            return None
        name = frozen_name(self.snapshots % wanted.league_size)
        _copy(algorithm, [name])
        self.snapshots += 1
        self.steps[name] = step
        games.clear()
        self._by_copy.pop(name, None)
        return name


def _copy(algorithm: Any, names: list[str]) -> None:
    """Overwrite modules with the learner's weights, in the learner and in all env runners."""
    group = algorithm.learner_group
    weights = group.get_weights([MAIN])[MAIN]
    copies = dict.fromkeys(names, weights)
    group.set_weights(copies)
    # Not by `sync_weights`: env runners ignore weights of an update whose number they have already seen.
    state = {COMPONENT_RL_MODULE: copies}
    algorithm.env_runner_group.foreach_env_runner(lambda runner: runner.set_state(state))
