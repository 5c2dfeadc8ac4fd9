"""The agents: ways to get one legal action out of a model."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.exchange import Message, Question, Reply, Talk, Tool, ToolCall
from llm_worker.problems import InvalidAnswerError
from llm_worker.prompts import Sight
from llm_worker.tally import Tally
from llm_worker.templates import Templates

__all__ = ["Asking", "Decided", "decide"]

Ask = Callable[[Question], Awaitable[Reply]]
_BOARD, _LEGAL, _MOVE = "get_current_board", "get_legal_moves", "make_move"
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_SHOWN = 200


@dataclass(frozen=True)
class Decided:
    """An action, and what the model said with it."""

    action: Any
    answer: str


@dataclass
class Asking:
    """One decision: who is asked, how, and what is counted."""

    config: LlmConfig
    templates: Templates
    ask: Ask
    tally: Tally
    seed: int
    attempt: int
    """How often this decision was asked for before."""
    structured: bool
    """Whether the endpoint is to enforce a schema."""
    said: list[str]
    """The model's words, which grow with each reply."""

    async def question(
        self, messages: list[Message], schema: dict[str, Any] | None = None, tools: tuple[Tool, ...] = ()
    ) -> Reply:
        """Ask once; count what comes; InvalidAnswerError if it was refused or cut off."""
        self.tally.require_room()
        question = Question(tuple(messages), schema, tools, self.seed, self.attempt)
        reply = await self.ask(question)
        self.tally.add(question, reply)
        self.said.append(reply.words)
        return reply


def _require_whole(reply: Reply, most: int) -> None:
    if reply.refusal:
        raise InvalidAnswerError(f"the model refused: {reply.refusal[:_SHOWN]}", "refusal")
    if reply.is_truncated:
        raise InvalidAnswerError(f"the answer was cut off after {most} tokens; raise max_tokens", "truncated")


async def decide(asking: Asking, messages: list[Message], sight: Sight) -> Decided:
    """Have the config's agent decide; InvalidAnswerError if no answer was a legal action."""
    if asking.config.agent == "tools":
        return await _with_tools(asking, Talk(messages), sight)
    tries = 1 + (asking.config.retries if asking.config.agent == "robust" else 0)
    talk = Talk(messages)
    while True:
        tries -= 1
        try:
            return await _once(asking, talk, sight)
        except InvalidAnswerError as error:
            asking.tally.invalid += 1
            if not tries:
                raise
            talk.tell(asking.templates.fill("again.txt", {"error": str(error), "actions": sight.choice.text}))


async def _once(asking: Asking, talk: Talk, sight: Sight) -> Decided:
    config, structured = asking.config, asking.structured
    thoughts = config.agent == "cot"
    reply = await asking.question(talk.messages, sight.choice.schema(thoughts=thoughts) if structured else None)
    talk.said(reply)
    _require_whole(reply, config.answer_tokens)
    return Decided(sight.choice.read(reply.text, structured=structured, thoughts=thoughts), reply.text)


# Tools.


async def _with_tools(asking: Asking, talk: Talk, sight: Sight) -> Decided:
    """Let the model look and move with tools, for as many turns as the config allows."""
    config = asking.config
    tools, last = _tools(sight), InvalidAnswerError("the model has not moved")
    for _ in range(config.tool_turns):
        reply = await asking.question(talk.messages, tools=tools)
        talk.said(reply)
        try:
            _require_whole(reply, config.answer_tokens)
            if not reply.calls:
                raise InvalidAnswerError(f"the model called no tool; only {_MOVE} counts as a move")
        except InvalidAnswerError as error:
            asking.tally.invalid += 1
            last = error
            if error.kind != "invalid":
                raise
            talk.tell(asking.templates.fill("again.txt", {"error": str(error), "actions": sight.choice.text}))
            continue
        for call in reply.calls:
            try:
                moved, shown = _use(call, sight)
            except InvalidAnswerError as error:
                asking.tally.invalid += 1
                last, moved, shown = error, None, f"error: {error}"
            if moved is not None:
                return Decided(moved.action, moved.answer)
            talk.tell(shown, call.id)
    raise InvalidAnswerError(
        f"the model has not moved within tool_turns ({config.tool_turns}); last: {last}", last.kind
    )


def _tools(sight: Sight) -> tuple[Tool, ...]:
    names = sight.choice.schema(thoughts=False)["properties"]["action"]
    move = {"type": "object", "properties": {"action": names}, "required": ["action"], "additionalProperties": False}
    return (
        Tool(_BOARD, "Show the board as it is now.", _NOTHING),
        Tool(_LEGAL, "List the legal actions.", _NOTHING),
        Tool(_MOVE, "Make your move: the name of one legal action.", move),
    )


def _use(call: ToolCall, sight: Sight) -> tuple[Decided | None, str]:
    """Carry out a call of a tool; return the move, if it was one, and what the tool answers."""
    if call.name == _BOARD:
        return None, sight.text
    if call.name == _LEGAL:
        return None, sight.choice.text
    if call.name != _MOVE:
        raise InvalidAnswerError(
            f"there is no tool {call.name[:_SHOWN]!r}; the tools are {_BOARD}, {_LEGAL} and {_MOVE}"
        )
    try:
        given = json.loads(call.arguments)["action"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidAnswerError(f'{_MOVE} needs {{"action": …}}, not {call.arguments[:_SHOWN]!r}') from None
    return Decided(sight.choice.find(given), json.dumps({"action": given})), ""
