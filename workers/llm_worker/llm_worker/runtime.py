"""A run of this worker by itself: asks the model a small question many times, and measures it."""

import asyncio
import time
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.exchange import Message, Question, Reply
from llm_worker.moves import Moves
from llm_worker.operator import make_caller
from llm_worker.problems import InvalidAnswerError, NoSchemaError
from llm_worker.spending import Price
from mosaic_worker.context import RunContext

__all__ = ["run"]

_DIRECTIONS = ("left", "right", "up", "down")
_SPACE = {"type": "Discrete", "n": len(_DIRECTIONS), "start": 0}
_QUESTION = "You stand in a room. The door is {}. Where do you go?\nLegal actions:\n{}"


def run(context: RunContext[LlmConfig]) -> dict[str, Any]:
    """Ask one question after the other; an episode is a question, and its return is 1 for the right answer."""
    config, emitter = context.config, context.emitter
    emitter.run_started(
        config.run_id,
        context.metadata.name,
        config=config.model_dump(mode="json"),
        env_id="questions",
        seed=config.seed,
        total_episodes=config.questions,
        task=f"{config.questions} questions to {config.model_name} at {config.address}",
    )
    # The cache would measure itself.
    measured = config.model_copy(update={"cache": "off", "agent": "naive"})
    return asyncio.run(_measure(context, measured))


async def _measure(context: RunContext[LlmConfig], config: LlmConfig) -> dict[str, Any]:
    caller = make_caller(config, context.run_dir)
    totals = {"right": 0, "invalid": 0, "tokens_in": 0, "tokens_out": 0, "latency_s": 0.0, "cost_usd": 0.0}
    try:
        for number in range(config.questions):
            context.stop.check()
            wanted = number % len(_DIRECTIONS)
            reply, answer = await _ask(caller, config, wanted, (config.seed or 0) + number)
            right = answer == wanted
            totals["right"] += right
            totals["invalid"] += answer is None
            _add(totals, reply, caller.price)
            step = number + 1
            context.emitter.episode(number, float(right), length=1, step=step, seed=(config.seed or 0) + number)
            values = {name: value / step for name, value in totals.items()}
            context.emitter.scalars(step, {**values, "latency_last_s": reply.latency_s})
    finally:
        await caller.close()
    return {**totals, "questions": config.questions, "model": config.model_name}


async def _ask(caller: Any, config: LlmConfig, wanted: int, seed: int) -> tuple[Reply, int | None]:
    choice = Moves(_SPACE, _DIRECTIONS).choice(None)
    structured = caller.takes_schemas
    told = (
        "Answer with a JSON object whose field action names one legal action."
        if structured
        else ("Answer with the name of one legal action and nothing else.")
    )
    text = _QUESTION.format(_DIRECTIONS[wanted], choice.text)
    messages = (Message("system", told), Message("user", text))
    question = Question(messages, choice.schema(thoughts=False) if structured else None, seed=seed)
    try:
        reply = await caller.ask(question, time.monotonic() + config.patience_s)
    except NoSchemaError:  # from now on the caller takes none
        return await _ask(caller, config, wanted, seed)
    try:
        return reply, choice.read(reply.text, structured=structured, thoughts=False)
    except InvalidAnswerError:
        return reply, None


def _add(totals: dict[str, Any], reply: Reply, price: Price | None) -> None:
    totals["tokens_in"] += reply.tokens_in
    totals["tokens_out"] += reply.tokens_out
    totals["latency_s"] += reply.latency_s
    totals["cost_usd"] += price.of(reply) if price else 0.0
