"""The operator: answers the arena's requests with a language model, all lanes at once."""

import asyncio
import hashlib
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from llm_worker.agents import Asking, decide
from llm_worker.caller import Caller
from llm_worker.config import LlmConfig
from llm_worker.examples import read_examples
from llm_worker.exchange import Message
from llm_worker.keys import read_key
from llm_worker.local_server import LocalServer
from llm_worker.moves import Moves
from llm_worker.pictures import picture_of
from llm_worker.problems import DecisionError, NoSchemaError
from llm_worker.prompts import Past, Prompts, Sight
from llm_worker.sights import Describer, Scene, describer_of
from llm_worker.stand_in import StandIn
from llm_worker.tally import Tally
from llm_worker.templates import Templates
from mosaic_worker.arrays import unstack
from mosaic_worker.context import RunContext
from mosaic_worker.errors import RequestError
from mosaic_worker.interactive import InteractiveWorker, Reply

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["LlmOperator", "make_caller"]

_SHARED = "MOSAIC_SHARED_DIR"
_SLACK_S = 30.0
"""What the arena waits beyond `patience_s`, for an answer that comes at the last moment."""
_CLOSE_S = 10.0
_MOST_SAID = 2000


@dataclass
class Player:
    """One agent: what its environment is, and how it is told about it."""

    describer: Describer
    moves: Moves
    prompts: Prompts


@dataclass
class Play:
    """One episode of one agent."""

    seed: int
    tally: Tally
    past: list[Past] = field(default_factory=list)
    failed: tuple[int, str] | None = None
    """The step at which no action came of the last decision, and what was seen then."""
    attempts: int = 0

    def before(self, step: int) -> Past | None:
        """Return the last turn before a step; other agents may have decided about the step itself already."""
        if self.failed is not None and self.failed[0] < step:
            return Past(*self.failed, None)
        return next((turn for turn in reversed(self.past) if turn.step < step), None)


class LlmOperator(InteractiveWorker):
    """Asks a model for each decision. An event loop in a thread of its own keeps all of them under way."""

    def __init__(self, context: RunContext[LlmConfig]) -> None:
        """Read key, templates and prices, so that what is missing is named before the first call."""
        self._config = context.config
        self._templates = Templates(self._config.templates)
        self._caller: Caller | StandIn = make_caller(self._config, context.run_dir)
        self._facts: dict[str | None, dict[str, Any]] = {}
        self._players: dict[str | None, Player] = {}
        self._plays: dict[tuple[str | None, int], Play] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="calls", daemon=True)
        self._thread.start()

    # The dialect.

    def inform(self, agent: str | None, facts: dict[str, Any]) -> None:
        """Learn what the environment is."""
        if "info" not in facts:
            self._facts[agent] = facts

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Prepare to play an agent."""
        facts = self._facts.get(agent, {})
        about = facts.get("environment") or {}
        name = agent or "agent"
        scene = Scene(
            env_id=str(about.get("id") or facts.get("game_name") or "unknown"),
            agent=name,
            agents=about.get("agents") or [name],
            doc=str(about.get("doc") or ""),
            observation_space=observation_space or {},
            action_space=action_space,
            meanings=facts.get("action_meanings"),
            map=about.get("map") or (),
        )
        describer = describer_of(scene)
        prompts = Prompts(
            config=self._config,
            templates=self._templates,
            environment=scene.env_id,
            rules=describer.rules,
            agent=name,
            team=list(self._config.team or scene.agents),
            examples=read_examples(self._config, scene, self._templates),
        )
        self._players[agent] = Player(describer, Moves(action_space, describer.names), prompts)
        self._plays = {key: play for key, play in self._plays.items() if key[0] != agent}
        self.begin_episode(agent, seed or 0, 0, 0)
        if facts.get("experiment"):
            self._caller.join(str(facts["experiment"]), self._fingerprint()[:12])

    def introduction(self, agent: str | None) -> dict[str, Any]:
        """Say how this operator wants to be asked."""
        wants = ["picture"] if self._config.vision else []
        patience = self._config.patience_s + _SLACK_S
        return {"fingerprint": f"llm-{self._fingerprint()[:16]}", "decision_s": patience, "wants": wants}

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Forget what was seen in a lane."""
        if agent not in self._players:
            raise RequestError(f"agent {agent!r} is not known: send init_agent first")
        self._plays[agent, lane] = Play(seed, Tally(self._caller.price, self._config.limits.episode))

    def answer_later(
        self, agent: str | None, observation: Any, lane: int, action_mask: Any, facts: dict[str, Any], reply: Reply
    ) -> None:
        """Have the model decide; other lanes do not wait."""
        self._schedule(agent, observation, lane, action_mask, facts).add_done_callback(
            lambda done: reply(done.result())
        )

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> list[Any]:
        """Decide in several lanes, for a client that waits; RequestError if one of them fails."""
        masks = [None] * len(lanes) if action_masks is None else action_masks
        asked = [
            self._schedule(agent, unstack(observations, row), lane, masks[row], {}) for row, lane in enumerate(lanes)
        ]
        answers = [each.result(self._config.patience_s + _SLACK_S) for each in asked]
        for answer in answers:
            if answer["type"] == "error":
                raise RequestError(answer["message"])
        return [answer["action"] for answer in answers]

    def close(self) -> None:
        """End what is under way."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSE_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)

    # In the thread of the calls.

    def _schedule(
        self, agent: str | None, observation: Any, lane: int, mask: Any, facts: dict[str, Any]
    ) -> "Future[dict[str, Any]]":
        play = self._plays.get((agent, lane))
        if play is None:
            raise RequestError(f"agent {agent!r} has no episode in lane {lane}: send begin_episode first")
        if self._config.vision and "picture" not in facts and facts:
            raise RequestError("vision: the environment renders no picture; set vision: false")
        # What is seen is put into words at once: the arena may use the memory again.
        sight = self._sight(agent, observation, mask, facts)
        step = int(facts.get("step", len(play.past)))
        return asyncio.run_coroutine_threadsafe(self._answer(agent, lane, play, sight, step), self._loop)

    async def _answer(self, agent: str | None, lane: int, play: Play, sight: Sight, step: int) -> dict[str, Any]:
        """Answer one request, whatever happens."""
        said: list[str] = []
        try:
            sight = replace(sight, mates=self._mates(agent, lane, step))
            answer = {"type": "action", "action": await self._decide(agent, play, sight, step, said)}
        except DecisionError as error:
            play.failed = step, self._players[agent].prompts.turn(sight, step)
            answer = {"type": "error", "kind": error.kind, "message": str(error)}
        except Exception as error:
            answer = {"type": "error", "message": f"{type(error).__name__}: {error}"}
        return {**answer, "said": "\n".join(said)[:_MOST_SAID], "report": play.tally.report()}

    async def _decide(self, agent: str | None, play: Play, sight: Sight, step: int, said: list[str]) -> Any:
        player, config = self._players[agent], self._config
        if play.failed is not None and play.failed[0] == step:
            play.attempts += 1
        else:
            play.tally.decisions += 1
            if play.failed is not None:
                play.past.append(Past(*play.failed, None))
            play.attempts = 0
        play.failed = None
        deadline = time.monotonic() + config.patience_s
        asking = Asking(
            config=config,
            templates=self._templates,
            ask=lambda question: self._caller.ask(question, deadline),
            tally=play.tally,
            seed=play.seed,
            attempt=play.attempts,
            structured=self._caller.takes_schemas,
            said=said,
        )

        def messages() -> list[Message]:
            return player.prompts.messages(sight, step, play.past, structured=asking.structured)

        try:
            decided = await decide(asking, messages(), sight)
        except NoSchemaError:
            asking.structured = False
            decided = await decide(asking, messages(), sight)
        seen = player.prompts.turn(sight, step)
        play.past.append(Past(step, seen, decided.answer, decided.action))
        # What nobody will read again. Teammates see the turn before, also once this one is over.
        del play.past[: -max(config.history, 2)]
        return decided.action

    async def _end(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await self._caller.close()

    # What is seen.

    def _sight(self, agent: str | None, observation: Any, mask: Any, facts: dict[str, Any]) -> Sight:
        player = self._players[agent]
        picture = picture_of(facts["picture"]) if self._config.vision and "picture" in facts else None
        text = player.describer.text(observation)
        return Sight(text, player.moves.choice(mask), picture)

    def _mates(self, agent: str | None, lane: int, step: int) -> str:
        """Say what teammates saw and did in the step before; they are played by this operator, too."""
        config = self._config
        if config.teammates == "nothing":
            return ""
        lines = []
        for other, player in self._players.items():
            play = self._plays.get((other, lane))
            last = None if play is None or other == agent else play.before(step)
            if last is None or (config.team and other not in config.team):
                continue
            did = "nothing legal" if last.answer is None else player.moves.label(last.action)
            lines.append(f"In the step before, your teammate {other} did: {did}.")
            if config.teammates == "observations":
                lines.append(f"It had been told:\n{last.seen}")
        return "\n".join(lines)

    def _fingerprint(self) -> str:
        """Identify what decides: the model, and everything that is put before it."""
        left_out = {"run_id", "worker_id", "seed", "concurrency", "limits", "cache", "prices", "key_env", "templates"}
        about = self._config.model_dump(mode="json", exclude=left_out)
        return hashlib.sha256(to_json([about, self._templates.digest])).hexdigest()


def make_caller(config: LlmConfig, run_dir: Path) -> Caller | StandIn:
    """Make what answers questions."""
    if config.endpoint == "stand-in":
        return StandIn(config)
    shared = Path(os.environ.get(_SHARED) or run_dir)  # a worker that runs alone shares nothing
    if config.endpoint == "local" and config.base_url is None:
        server = LocalServer(config)
        return Caller(config, server.key, shared, lambda: asyncio.to_thread(server.start), run_dir)
    return Caller(config, read_key(config, os.environ), shared)
