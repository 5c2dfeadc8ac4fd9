"""Examples that the agent `few_shot` sees before its first turn: the templates' by environment, or a user's file."""

import json
from pathlib import Path
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.problems import RefusedError
from llm_worker.sights import Scene
from llm_worker.templates import Templates

__all__ = ["read_examples"]

_OWN = {"BabyAI-": "examples-babyai.json", "MiniGrid-": "examples-babyai.json", "tictactoe": "examples-tictactoe.json"}


def read_examples(config: LlmConfig, scene: Scene, templates: Templates) -> list[tuple[str, str]]:
    """Return observations with their actions; RefusedError if there are none, or a file does not fit."""
    if config.agent != "few_shot":
        return []
    if config.examples is not None:
        text, where = _read(config.examples), config.examples
    else:
        where = next((file for start, file in _OWN.items() if scene.name.startswith(start)), "")
        if not where:
            raise RefusedError(
                f"examples: there are none for {scene.env_id}; name a JSON file with a list of "
                '{"observation": …, "action": …}'
            )
        text = templates.text(where)
    return [(example["observation"], example["action"]) for example in _parse(text, where)]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"examples: {path!r} cannot be read: {error}") from error


def _parse(text: str, where: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RefusedError(f"examples: {where} is no JSON: {error}") from error
    fits = isinstance(found, list) and found
    if not fits or not all(
        isinstance(each, dict) and isinstance(each.get("observation"), str) and isinstance(each.get("action"), str)
        for each in found
    ):
        raise RefusedError(f'examples: {where} is not a list of {{"observation": "…", "action": "…"}}')
    return list(found)
