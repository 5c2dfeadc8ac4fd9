"""The original MOSAIC's operator scripts: `operators` and `execution` become experiments.

An operator of such a script is an environment together with the workers that play its agents: a lineup of ours.
Operators in the same environment become one experiment; the others, one for each environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mosaic_bus.wording import did_you_mean
from mosaic_services.specs import SpecError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_original"]

_OPERATOR_KEYS = ("id", "name", "env_name", "task", "max_steps", "workers", "type", "worker_id", "settings", "seed")
_EXECUTION_KEYS = ("auto_run", "num_episodes", "seeds", "environment_mode", "env_mode", "step_delay_ms")
_MODES = ("procedural", "fixed")
_BASELINES = {"random": "random", "passive": "passive", "noop": "passive"}
_TYPES = ("baseline", "rl", "llm", "vlm", "human", *_BASELINES)
# Keys under which the original names a checkpoint.
_CHECKPOINTS = ("policy_path", "checkpoint", "checkpoint_path", "model_path")
# Games by the name that the original gives them.
_GAMES = {"chess": "chess_v6", "connect_four": "connect_four_v3", "go": "go_v5", "tictactoe": "tictactoe_v3"}
_DEFAULT_SEED = 0
# Its workers for language models. All are ours.
_MODEL_WORKERS = ("mosaic_llm", "balrog", "llm")
# What they call the options of ours; options with the names of ours are taken as they are.
_MODEL_OPTIONS = {
    "model_id": "model",
    "model_name": "model",
    "api_base": "base_url",
    "api_key_env": "key_env",
    "max_text_history": "history",
    "timeout": "timeout_s",
    "max_retries": "tries",
}
_OUR_MODEL_OPTIONS = (
    *("endpoint", "model", "base_url", "key_env", "agent", "history", "role", "vision"),
    *("temperature", "top_p", "max_tokens", "timeout_s", "tries"),
)
_ENDPOINTS = {
    **{name: name for name in ("openai", "openrouter", "anthropic", "vllm", "ollama")},
    "claude": "anthropic",
}
_AGENTS = {"naive": "naive", "cot": "cot", "robust_naive": "robust", "few_shot": "few_shot"}
# What a worker says of the environment and of seeds, which are the experiment's here.
_NOT_OPTIONS = ("type", "worker_id", "env_name", "task", "seed", "max_steps")


def read_original(operators: Any, execution: Any, path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one document for each environment, and notes on what has no effect here."""
    if not isinstance(operators, list) or not operators or not all(isinstance(each, dict) for each in operators):
        raise SpecError(f"{path}: operators must be a list of maps with id, task and workers")
    if not isinstance(execution, dict):
        raise SpecError(f"{path}: execution must be a map, for example {{'num_episodes': 10, 'seeds': [42]}}")
    notes = _notes(execution, path)
    common: dict[str, Any] = {"episodes": _episodes(execution, path), "seeds": _seeds(execution, path)}
    if execution.get("step_delay_ms"):
        common["pacing"] = {"step_delay_ms": execution["step_delay_ms"]}
    made: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(operators):
        environment = _environment(each, f"{path}: operators[{number}]")
        document = made.setdefault(
            repr(sorted(environment.items(), key=str)),
            {"environment": environment, "operators": {}, "lineups": [], **common},
        )
        _add(document, each, f"{path}: operators[{number}]", path)
    stem = _plain(path.stem)
    for number, document in enumerate(made.values()):
        document["name"] = stem if len(made) == 1 else f"{stem[:60]}-{number + 1}"
    return list(made.values()), notes


def _notes(execution: dict[str, Any], path: Path) -> list[str]:
    for key in execution:
        if key not in _EXECUTION_KEYS:
            hint = did_you_mean(key, _EXECUTION_KEYS) or f"the fields are: {', '.join(_EXECUTION_KEYS)}"
            raise SpecError(f"{path}: execution: field {key!r} is unknown", hint)
    if execution.get("step_delay_ms"):
        return [f"step_delay_ms is {execution['step_delay_ms']}: each episode waits that long between two steps"]
    return []


def _episodes(execution: dict[str, Any], path: Path) -> int:
    seeds = execution.get("seeds")
    number = execution.get("num_episodes", len(seeds) if isinstance(seeds, list) and seeds else 1)
    if type(number) is not int or number < 1:
        raise SpecError(f"{path}: execution: num_episodes must be a whole number of 1 or more, got {number!r}")
    return number


def _seeds(execution: dict[str, Any], path: Path) -> dict[str, Any]:
    mode = execution.get("environment_mode", execution.get("env_mode", "procedural"))
    if mode not in _MODES:
        hint = did_you_mean(mode, _MODES) or f"the modes are: {', '.join(_MODES)}"
        raise SpecError(f"{path}: execution: environment_mode {mode!r} is unknown", hint)
    given = execution.get("seeds", [_DEFAULT_SEED])
    values = [given] if type(given) is int else given
    if not isinstance(values, list) or not values or not all(type(each) is int for each in values):
        raise SpecError(f"{path}: execution: seeds must be a list of whole numbers, got {given!r}")
    return {"mode": "fixed", "values": values[:1]} if mode == "fixed" else {"mode": "list", "values": values}


def _environment(operator: dict[str, Any], where: str) -> dict[str, Any]:
    for key in operator:
        if key not in _OPERATOR_KEYS:
            hint = did_you_mean(key, _OPERATOR_KEYS) or f"the fields are: {', '.join(_OPERATOR_KEYS)}"
            raise SpecError(f"{where}: field {key!r} is unknown", hint)
    settings = operator.get("settings") or {}
    task = operator.get("task") or settings.get("task") or operator.get("env_name")
    if not isinstance(task, str) or not task:
        raise SpecError(f"{where}: task is missing", "for example: 'task': 'MiniGrid-Empty-8x8-v0'")
    made: dict[str, Any] = {"id": _GAMES.get(task, task)}
    if (steps := operator.get("max_steps", settings.get("max_steps"))) is None:
        steps = _steps_of_workers(operator.get("workers"), where)
    if steps is not None:
        made["max_steps"] = steps
    return made


def _steps_of_workers(workers: Any, where: str) -> Any:
    """The maximum of steps that the workers name: it ends the episode of all of them."""
    each = [worker.get("max_steps") for worker in workers.values()] if isinstance(workers, dict) else []
    found = [steps for steps in each if steps is not None]
    if any(steps != found[0] for steps in found):
        raise SpecError(f"{where}: its workers name different max_steps: {', '.join(map(str, found))}")
    return found[0] if found else None


def _add(document: dict[str, Any], operator: dict[str, Any], where: str, path: Path) -> None:
    """Add an operator's workers as our operators, and the operator itself as a lineup."""
    name = _plain(str(operator.get("id") or operator.get("name") or f"operator-{len(document['lineups']) + 1}"))
    if any(each["name"] == name for each in document["lineups"]):
        raise SpecError(f"{where}: two operators have the id {name!r}")
    workers = operator.get("workers")
    if workers is None and operator.get("type"):
        workers = {
            "*": {"type": operator["type"], "worker_id": operator.get("worker_id"), **(operator.get("settings") or {})}
        }
    if not isinstance(workers, dict) or not workers or not all(isinstance(each, dict) for each in workers.values()):
        raise SpecError(
            f"{where}: workers must be a map from agent to worker", "for example: {'agent': {'type': 'random'}}"
        )
    alone = len(workers) == 1
    lineup = {"name": name}
    for agent, worker in workers.items():
        own = name if alone else _plain(f"{name}.{agent}")
        document["operators"][own] = _operator(worker, f"{where}: workers[{agent!r}]", path)
        lineup["*" if alone else str(agent)] = own
    document["lineups"].append(lineup)


def _operator(worker: dict[str, Any], where: str, path: Path) -> dict[str, Any]:
    kind = worker.get("type")
    # The original keeps a seed in each worker; here all seeds follow from the experiment's.
    given = {**worker, **(worker.get("settings") or {})}
    options = {key: value for key, value in given.items() if key not in {*_NOT_OPTIONS, "settings"}}
    if kind in _BASELINES or kind == "baseline":
        behavior = options.get("behavior", "random") if kind == "baseline" else kind
        if behavior not in _BASELINES:
            hint = did_you_mean(behavior, _BASELINES) or f"the behaviors are: {', '.join(_BASELINES)}"
            raise SpecError(f"{where}: behavior {behavior!r} is unknown", hint)
        return {"worker": "baseline", "config": {"behavior": _BASELINES[behavior]}}
    if kind == "rl":
        return _trained(worker.get("worker_id"), options, where, path)
    if kind == "human":
        return {"worker": "human", "config": options}
    if kind in ("llm", "vlm"):
        own = _worker(worker.get("worker_id"), "llm")
        if own not in _MODEL_WORKERS:
            return {"worker": own, "config": options}
        return {"worker": "llm", "config": _model(options, where) | ({"vision": True} if kind == "vlm" else {})}
    hint = did_you_mean(kind, _TYPES) or f"the types are: {', '.join(_TYPES)}"
    raise SpecError(f"{where}: type {kind!r} is unknown", hint)


def _trained(worker_id: Any, options: dict[str, Any], where: str, path: Path) -> dict[str, Any]:
    found = next((options.pop(key) for key in _CHECKPOINTS if options.get(key)), None)
    if not isinstance(found, str):
        raise SpecError(f"{where}: no checkpoint is given", "add 'policy_path': 'run:NAME@best' or a path")
    options.pop("algorithm", None)
    if not found.startswith("run:"):
        found = str((path.resolve().parent / found).resolve())
    return {"worker": _worker(worker_id, "cleanrl"), "checkpoint": found, "config": options}


def _model(options: dict[str, Any], where: str) -> dict[str, Any]:
    """Translate the options of a language model; refuse those that have no counterpart."""
    config: dict[str, Any] = {}
    for key, value in options.items():
        if key == "client_name":
            config["endpoint"] = _one_of(_ENDPOINTS, value, f"{where}: client_name")
        elif key == "agent_type":
            config["agent"] = _one_of(_AGENTS, value, f"{where}: agent_type")
        elif key == "max_image_history":
            config["vision"] = bool(value)
        elif key == "api_key":
            raise SpecError(f"{where}: a key does not stand in a file", "set the variable that api_key_env names")
        elif key in _MODEL_OPTIONS or key in _OUR_MODEL_OPTIONS:
            config[_MODEL_OPTIONS.get(key, key)] = value
        else:
            known = ["client_name", "agent_type", "max_image_history", *_MODEL_OPTIONS, *_OUR_MODEL_OPTIONS]
            hint = did_you_mean(key, known) or f"the options are: {', '.join(known)}"
            raise SpecError(f"{where}: option {key!r} of a language model is unknown here", hint)
    if "endpoint" not in config and "base_url" in config:
        config["endpoint"] = "vllm"  # it speaks as OpenAI does, and needs no key
    if "endpoint" not in config and "model" in config:
        raise SpecError(f"{where}: nothing says where model {config['model']!r} is", "add 'client_name' or 'base_url'")
    return config


def _one_of(known: dict[str, str], value: Any, where: str) -> str:
    if value not in known:
        raise SpecError(f"{where} {value!r} is unknown", did_you_mean(value, known) or f"use: {', '.join(known)}")
    return known[value]


def _worker(worker_id: Any, usual: str) -> str:
    return re.sub(r"_worker$", "", str(worker_id)) if worker_id else usual


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:64]
