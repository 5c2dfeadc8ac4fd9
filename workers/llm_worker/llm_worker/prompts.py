"""Puts a prompt together: who the agent is, what it saw and did before, and what it sees now."""

import json
from dataclasses import dataclass, field
from typing import Any

from llm_worker.config import LlmConfig
from llm_worker.exchange import Message
from llm_worker.moves import Choice
from llm_worker.templates import Templates

__all__ = ["Past", "Prompts", "Sight"]

_HINTS = (
    "You are part of a team of agents that want the same. You cannot talk to each other. Think about what your "
    "teammates will do, and do what they leave undone."
)


@dataclass(frozen=True)
class Sight:
    """What an agent is told in one turn."""

    text: str
    choice: Choice
    picture: str | None = None
    mates: str = ""
    """What teammates saw and did in the step before."""


@dataclass
class Past:
    """An earlier turn: what was seen, and what the model answered; None if no legal action came of it."""

    step: int
    seen: str
    answer: str | None
    action: Any = None


@dataclass
class Prompts:
    """The prompts of one agent in one environment."""

    config: LlmConfig
    templates: Templates
    environment: str
    rules: str
    agent: str
    team: list[str]
    examples: list[tuple[str, str]] = field(default_factory=list)
    """Observations with their actions."""
    _systems: dict[bool, str] = field(default_factory=dict)

    def messages(self, sight: Sight, step: int, past: list[Past], *, structured: bool) -> list[Message]:
        """Write everything that the model reads for one decision; it answers with JSON if the answer is structured."""
        if structured not in self._systems:
            self._systems[structured] = self._system(structured=structured)
        found = [Message("system", self._systems[structured])]
        for seen, action in self.examples:
            answer = json.dumps({"action": action}) if structured else action
            found += [Message("user", seen), Message("assistant", answer)]
        for turn in past[-self.config.history :] if self.config.history else []:
            found.append(Message("user", turn.seen))
            found.append(
                Message("assistant", self.templates.fill("replaced.txt") if turn.answer is None else turn.answer)
            )
        return [*found, Message("user", self.turn(sight, step), picture=sight.picture)]

    def turn(self, sight: Sight, step: int) -> str:
        """Write what the agent sees now."""
        values = {"step": str(step + 1), "observation": sight.text, "mates": sight.mates, "actions": sight.choice.text}
        return _tidy(self.templates.fill("turn.txt", values))

    def _system(self, *, structured: bool) -> str:
        """Write who the agent is."""
        return _tidy(
            self.templates.fill(
                "system.txt",
                {
                    "environment": self.environment,
                    "rules": self.rules,
                    "agent": self.agent,
                    "team": self._team(),
                    "answer": self.templates.fill(self._answer(structured=structured)),
                },
            )
        )

    def _answer(self, *, structured: bool) -> str:
        if self.config.agent == "tools":
            return "answer-tools.txt"
        thoughts = "-thoughts" if self.config.agent == "cot" else ""
        return f"answer-{'schema' if structured else 'text'}{thoughts}.txt"

    def _team(self) -> str:
        config = self.config
        role = config.roles.get(self.agent, config.role)
        mates = [agent for agent in self.team if agent != self.agent]
        if not role and config.coordination == "none":
            return ""
        roles = ""
        if config.coordination == "roles":
            known = [f"- {agent}: {config.roles.get(agent, config.role) or 'no role'}" for agent in mates]
            roles = "The roles of your teammates:\n" + "\n".join(known) if known else ""
        values = {
            "agent": self.agent,
            "agents": ", ".join(mates),
            "role": f"Your role: {role}" if role else "",
            "roles": roles,
            "coordination": f"{_HINTS} Your teammates: {', '.join(mates)}." if config.coordination != "none" else "",
        }
        return self.templates.fill("team.txt", values)


def _tidy(text: str) -> str:
    """Leave out lines that a template has for what there is not."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() or (lines and lines[-1].strip()):
            lines.append(line.rstrip())
    return "\n".join(lines).strip()
