"""No model at all: answers with a random legal action. It shows what would be asked, at no cost."""

import asyncio
import json
import random
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.exchange import Question, Reply, ToolCall
from llm_worker.spending import Price

__all__ = ["StandIn"]

_ANSWER_S = 0.01
_CHARACTERS_PER_TOKEN = 4


class StandIn:
    """Speaks like a caller. Its answer follows from the question's seed and messages."""

    price = Price(0.0, 0.0, 0.0)

    def __init__(self, config: LlmConfig) -> None:
        """Answer as the config's agent would."""
        self._config = config
        self.takes_schemas = config.structured != "text"

    def join(self, experiment: str, fingerprint: str) -> None:
        """Nothing is spent."""

    async def ask(self, question: Question, deadline: float) -> Reply:
        """Answer at random."""
        await asyncio.sleep(_ANSWER_S)
        name = _choose(question)
        action = json.dumps({"thoughts": "none", "action": name} if self._config.agent == "cot" else {"action": name})
        if question.tools:
            calls: tuple[ToolCall, ...] = (ToolCall("0", "make_move", json.dumps({"action": name})),)
            action = ""
        else:
            calls = ()
            action = action if question.schema is not None else f"ACTION: {name}"
        sent = sum(len(message.text) for message in question.messages) // _CHARACTERS_PER_TOKEN
        return Reply(action, calls, model="stand-in", tokens_in=sent, tokens_out=len(action) // _CHARACTERS_PER_TOKEN)

    async def close(self) -> None:
        """There is nothing to close."""


def _choose(question: Question) -> Any:
    """Choose at random; the same question gets the same answer."""
    text = question.messages[-1].text
    schemas = [question.schema, *(tool.parameters for tool in question.tools)]
    actions = [schema["properties"]["action"] for schema in schemas if schema and "action" in schema["properties"]]
    generator = random.Random(f"{question.seed} {question.attempt} {text}")
    if actions and "enum" not in actions[0]:
        return [0] * int(actions[0]["minItems"])
    listed = text.rpartition("Legal actions:")[2].splitlines()
    names = actions[0]["enum"] if actions else [line[2:] for line in listed if line.startswith("- ")]
    return generator.choice(names) if names else [0]
