"""The config of an operator that is a language model."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mosaic_worker.config import InputPath, WorkerConfig

__all__ = ["PRESETS", "Concurrency", "Limit", "Limits", "LlmConfig", "Preset"]

_SHORT, _LONG = 256, 1024
"""Tokens of an answer: an action, or thoughts before it."""

_VARIABLE = r"^[A-Z_][A-Z0-9_]*$"
"""Capitals alone, since keys of some providers have only letters, digits and `_`, too, but small ones among them."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Preset(_Part):
    """Where an endpoint is found, how it is spoken to, and which variable holds its key."""

    base_url: str
    api: Literal["openai", "anthropic", "stand-in"] = "openai"
    key_env: str | None = None
    token_field: str = "max_tokens"  # noqa: S105 - tokens of text


PRESETS = {
    "openai": Preset(
        base_url="https://api.openai.com/v1",
        key_env="OPENAI_API_KEY",
        token_field="max_completion_tokens",  # noqa: S106
    ),
    "openrouter": Preset(base_url="https://openrouter.ai/api/v1", key_env="OPENROUTER_API_KEY"),
    "anthropic": Preset(base_url="https://api.anthropic.com/v1", api="anthropic", key_env="ANTHROPIC_API_KEY"),
    "vllm": Preset(base_url="http://127.0.0.1:8000/v1"),
    "ollama": Preset(base_url="http://127.0.0.1:11434/v1"),
    "llama.cpp": Preset(base_url="http://127.0.0.1:8080/v1"),
    "local": Preset(base_url="local:"),
    "stand-in": Preset(base_url="stand-in:", api="stand-in"),
}


class Limit(_Part):
    """What may be used up. A limit is not exceeded by more than the calls that are under way."""

    tokens: int | None = Field(default=None, ge=1, description="Tokens of prompts and answers together")
    seconds: float | None = Field(default=None, gt=0, description="Seconds that the model took")
    turns: int | None = Field(default=None, ge=1, description="Answers of the model")
    usd: float | None = Field(default=None, gt=0, description="Money, by the price file")


class Limits(_Part):
    """Limits of one episode of one agent, and of the whole experiment on this host."""

    episode: Limit = Field(default_factory=Limit, description="Reached: the decision fails, as `failures` says")
    experiment: Limit = Field(default_factory=Limit, description="Reached: the operator plays no further episode")


class Concurrency(_Part):
    """How many calls are under way at the same time, in all processes of a host together."""

    start: int = Field(default=4, ge=1, description="At first; it grows while the endpoint keeps up")
    most: int = Field(default=256, ge=1, le=4096, description="Never more than this")


class LlmConfig(WorkerConfig):
    """A model, how it is asked, and what it may use up."""

    endpoint: Literal["local", "openai", "openrouter", "anthropic", "vllm", "ollama", "llama.cpp", "stand-in"] = Field(
        default="local", description="local: a small model on this machine (profile local); stand-in: no model at all"
    )
    base_url: str | None = Field(default=None, description="Another address that speaks as `endpoint` does")
    model: str = Field(default="", description="The model's name at the endpoint")
    key_env: Annotated[str, Field(pattern=_VARIABLE)] | None = Field(
        default=None, description="Variable that holds the key; NAME_FILE may hold the path of a file with it instead"
    )
    agent: Literal["naive", "cot", "robust", "few_shot", "tools"] = Field(
        default="naive",
        description="naive: answers with an action; cot: thinks first; robust: is asked again with the error; "
        "few_shot: sees examples; tools: looks at the board and moves with tools",
    )
    retries: int = Field(default=2, ge=0, le=20, description="robust: how often it is asked again with the error")
    tool_turns: int = Field(
        default=8, ge=1, le=50, description="tools: answers of the model until it has to have moved"
    )
    structured: Literal["auto", "schema", "text"] = Field(
        default="auto",
        description="schema: the endpoint only allows legal actions; text: a strict parser reads the answer; "
        "auto: schema, or text if the endpoint refuses schemas",
    )
    history: int = Field(default=4, ge=0, le=1000, description="Earlier turns of the episode that the model sees")
    templates: InputPath | None = Field(default=None, description="Folder whose files replace the templates")
    examples: InputPath | None = Field(default=None, description="few_shot: a JSON file with a list of examples")
    vision: bool = Field(default=False, description="Show the model a picture of the environment, too")
    role: str = Field(default="", max_length=4000, description="What the agent is to the team, in words")
    roles: dict[str, str] = Field(default_factory=dict, description="The same by agent")
    coordination: Literal["none", "hints", "roles"] = Field(
        default="none", description="What it is told about its team: nothing, that there is one, or who has which role"
    )
    teammates: Literal["nothing", "actions", "observations"] = Field(
        default="nothing", description="What it sees of agents that the same operator plays, from the step before"
    )
    team: list[str] = Field(default_factory=list, description="Its teammates; all agents of the operator if left out")
    temperature: float | None = Field(default=0.0, ge=0, le=2, description="null: not sent")
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, description="Of an answer; 256, or 1024 with thoughts or tools")
    extra: dict[str, Any] = Field(default_factory=dict, description="Further fields of the request")
    sends_seed: bool = Field(default=True, description="Send the episode's seed, where the endpoint knows `seed`")
    prices: InputPath | None = Field(default=None, description="TOML file: USD per million tokens, by model")
    limits: Limits = Field(default_factory=Limits)
    concurrency: Concurrency = Field(default_factory=Concurrency)
    timeout_s: float = Field(default=120.0, gt=0, le=3600, description="For one call")
    tries: int = Field(default=5, ge=1, le=100, description="Calls that may fail (500, time-out …) for one answer")
    patience_s: float = Field(
        default=1800.0, gt=0, le=86_400, description="For one decision, with its waits for a busy endpoint"
    )
    cache: Literal["use", "off", "only"] = Field(
        default="use", description="Replies are kept and used again; only: a reply that is not there is an error"
    )
    threads: int = Field(default=1, ge=1, le=256, description="Of the model on this machine")
    context: int = Field(default=4096, ge=256, le=8192, description="Tokens that the model on this machine can read")
    questions: int = Field(default=10, ge=1, description="Of a run of this worker by itself, which measures the model")

    @model_validator(mode="after")
    def _model_is_named(self) -> Self:
        if not self.model and self.endpoint not in {"local", "stand-in"}:
            raise ValueError(f"model: missing; name a model of the endpoint {self.endpoint}")
        if self.examples is not None and self.agent != "few_shot":
            raise ValueError(f"examples: only the agent few_shot shows them, not {self.agent}")
        return self

    @field_validator("key_env", mode="before")
    @classmethod
    def _is_variable(cls, name: Any) -> Any:
        if isinstance(name, str) and not re.fullmatch(_VARIABLE, name):
            raise ValueError(
                "is no name of a variable, such as MY_KEY (capitals, digits and _); the key itself stands in the "
                "variable, never in the config"
            )
        return name

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
        except ValueError:  # its message would repeat the address, which may hold a password
            raise ValueError("is no address such as https://host/v1") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("is no address such as https://host/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError("must hold no user, password or query: a key belongs into the variable that key_env names")
        return url.rstrip("/")

    @field_validator("templates", "examples", "prices")
    @classmethod
    def _is_absolute(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_absolute():
            raise ValueError("is not an absolute path: it would be looked for in the run's folder")
        return path

    @property
    def counts_tokens(self) -> bool:
        """Whether a limit needs to know how many tokens each reply used."""
        return any(
            limit.tokens is not None or limit.usd is not None for limit in (self.limits.episode, self.limits.experiment)
        )

    @property
    def preset(self) -> Preset:
        """What is known about the endpoint."""
        return PRESETS[self.endpoint]

    @property
    def address(self) -> str:
        """Where the endpoint is."""
        return self.base_url or self.preset.base_url

    @property
    def model_name(self) -> str:
        """The model's name; the two models that come with the worker need none."""
        return self.model or {"local": "SmolLM2-135M-Instruct", "stand-in": "stand-in"}[self.endpoint]

    @property
    def answer_tokens(self) -> int:
        """Tokens that an answer may have."""
        return self.max_tokens or (_LONG if self.agent in {"cot", "tools"} else _SHORT)
