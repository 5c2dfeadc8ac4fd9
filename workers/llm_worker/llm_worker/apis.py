"""The two dialects of chat endpoints: OpenAI's, which most servers speak, and Anthropic's."""

import json
from typing import Any, Protocol

from llm_worker.config import LlmConfig
from llm_worker.exchange import Message, Question, Reply, ToolCall
from llm_worker.keys import Key

__all__ = ["AnthropicApi", "Api", "OpenAiApi", "api_of"]

_ANTHROPIC_VERSION = "2023-06-01"
_ANSWER = "answer"
_REFUSED = frozenset({"content_filter", "refusal"})


class Api(Protocol):
    """Writes questions and reads replies."""

    path: str

    def headers(self, key: Key | None) -> dict[str, str]:
        """Return the headers of a call."""

    def body(self, config: LlmConfig, question: Question) -> dict[str, Any]:
        """Write a question."""

    def read(self, document: dict[str, Any]) -> Reply:
        """Read a reply; KeyError, TypeError, IndexError or ValueError if it is none."""


class OpenAiApi:
    """`/chat/completions`."""

    path = "/chat/completions"

    def headers(self, key: Key | None) -> dict[str, str]:
        """Return the headers of a call."""
        return {} if key is None else {"Authorization": f"Bearer {key.reveal()}"}

    def body(self, config: LlmConfig, question: Question) -> dict[str, Any]:
        """Write a question."""
        body: dict[str, Any] = {
            "model": config.model_name,
            "messages": [_openai_message(message) for message in question.messages],
            config.preset.token_field: config.answer_tokens,
        }
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if config.top_p is not None:
            body["top_p"] = config.top_p
        if config.sends_seed:
            body["seed"] = question.seed
        if question.schema is not None:
            answer = {"name": _ANSWER, "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        if question.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in question.tools
            ]
            body["tool_choice"] = "required"
        return {**body, **config.extra}

    def read(self, document: dict[str, Any]) -> Reply:
        """Read a reply."""
        choice = document["choices"][0]
        message, usage = choice["message"], document.get("usage") or {}
        finish = str(choice.get("finish_reason") or "")
        text = message.get("content")
        calls = [
            ToolCall(str(call.get("id") or number), str(call["function"]["name"]), str(call["function"]["arguments"]))
            for number, call in enumerate(message.get("tool_calls") or ())
        ]
        if text is not None and not isinstance(text, str):
            raise TypeError("the content is no text")
        return Reply(
            text=text or "",
            calls=tuple(calls),
            finish=finish,
            refusal=str(message.get("refusal") or (finish if finish in _REFUSED else "")),
            model=str(document.get("model") or ""),
            fingerprint=str(document.get("system_fingerprint") or ""),
            tokens_in=int(usage.get("prompt_tokens") or 0),
            tokens_out=int(usage.get("completion_tokens") or 0),
            tokens_cached=int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
        )


class AnthropicApi:
    """`/messages`. A schema is asked for as a tool that the model has to call."""

    path = "/messages"

    def headers(self, key: Key | None) -> dict[str, str]:
        """Return the headers of a call."""
        own = {"anthropic-version": _ANTHROPIC_VERSION}
        return own if key is None else {**own, "x-api-key": key.reveal()}

    def body(self, config: LlmConfig, question: Question) -> dict[str, Any]:
        """Write a question."""
        system = "\n\n".join(message.text for message in question.messages if message.role == "system")
        body: dict[str, Any] = {
            "model": config.model_name,
            "system": system,
            "messages": _joined([message for message in question.messages if message.role != "system"]),
            "max_tokens": config.answer_tokens,
        }
        if config.temperature is not None:
            body["temperature"] = min(config.temperature, 1.0)
        if config.top_p is not None:
            body["top_p"] = config.top_p
        if question.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in question.tools
            ]
            body["tool_choice"] = {"type": "any"}
        elif question.schema is not None:
            answer = {"name": _ANSWER, "description": "Give your answer.", "input_schema": question.schema}
            body |= {"tools": [answer], "tool_choice": {"type": "tool", "name": _ANSWER}}
        return {**body, **config.extra}

    def read(self, document: dict[str, Any]) -> Reply:
        """Read a reply."""
        usage = document.get("usage") or {}
        blocks = document["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            ToolCall(str(block["id"]), str(block["name"]), json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ]
        answers = [call for call in calls if call.name == _ANSWER]
        finish = str(document.get("stop_reason") or "")
        fresh, read = int(usage.get("input_tokens") or 0), int(usage.get("cache_read_input_tokens") or 0)
        written = int(usage.get("cache_creation_input_tokens") or 0)
        return Reply(
            text=answers[0].arguments if answers else text,
            calls=tuple(call for call in calls if call.name != _ANSWER),
            finish=finish,
            refusal=finish if finish in _REFUSED else "",
            model=str(document.get("model") or ""),
            tokens_in=fresh + read + written,
            tokens_out=int(usage.get("output_tokens") or 0),
            tokens_cached=read,
        )


def api_of(config: LlmConfig) -> Api:
    """Return the dialect of the config's endpoint."""
    return AnthropicApi() if config.preset.api == "anthropic" else OpenAiApi()


def _openai_message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    content: Any = message.text
    if message.picture is not None:
        shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{message.picture}"}}
        content = [{"type": "text", "text": message.text}, shown]
    found: dict[str, Any] = {"role": message.role, "content": content}
    if message.calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return found


def _joined(messages: list[Message]) -> list[dict[str, Any]]:
    """Write messages for Anthropic: user and assistant take turns, and a tool's result is the user's."""
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks: list[dict[str, Any]] = []
        if message.role == "tool":
            blocks.append({"type": "tool_result", "tool_use_id": message.call_id, "content": message.text})
        elif message.text.strip():  # it takes no empty text
            blocks.append({"type": "text", "text": message.text})
        if message.picture is not None:
            source = {"type": "base64", "media_type": "image/png", "data": message.picture}
            blocks.append({"type": "image", "source": source})
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call.arguments)}
            for call in message.calls
        ]
        if not blocks:
            continue
        if found and found[-1]["role"] == role:
            found[-1]["content"] += blocks
        else:
            found.append({"role": role, "content": blocks})
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
