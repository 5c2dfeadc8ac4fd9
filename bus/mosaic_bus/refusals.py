"""Why commands are refused: the codes, and the details that a caller can act on without reading the message."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from mosaic_bus.messages import Model, Resources
from mosaic_bus.wording import shown

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__all__ = ["Problem", "RefusalCode", "RefusalDetails", "brief", "explain", "find_problems"]

_LONGEST_VALUE = 200
_LONGEST_NAME = 64
# A message that lists more problems than this helps nobody.
_MOST_PROBLEMS = 20


class RefusalCode(StrEnum):
    """A refusal's code, with its meaning and the fields of `RefusalDetails` that come with it."""

    meaning: str
    details: tuple[str, ...]

    def __new__(cls, code: str, meaning: str, *details: str) -> Self:
        """Make a member that is the code, and keep the rest beside it."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.details = details
        return member

    AFTER_FAILED = "after_failed", "a run in `after` has ended without success", "field", "value", "run", "state"
    ALREADY_ENDED = "already_ended", "this host has already seen the end of the attempt", "run"
    ALREADY_FINAL = "already_final", "the run, or every run of the group, has ended", "run", "state"
    ALREADY_PLACED = "already_placed", "the run does not wait in the queue", "run", "state"
    ALREADY_RUNNING = "already_running", "the experiment is being played", "value"
    AMBIGUOUS_RUN = "ambiguous_run", "several runs fit; give an id", "index", "field", "value", "candidates"
    BUSY = "busy", "too many queries wait for an answer: ask again later"
    CIRCULAR_AFTER = "circular_after", "runs wait for each other", "candidates"
    EXPERIMENT_CHANGED = (
        "experiment_changed",
        "an experiment of this name has records that another environment, operator or seed made",
        "problems",
    )
    HOST_UNAVAILABLE = "host_unavailable", "the host cannot take the attempt now"
    ID_REUSED = "id_reused", "the id belongs to a run with another spec, or occurs twice", "index", "run"
    IMPOSSIBLE_RESOURCES = (
        "impossible_resources",
        "no host is large enough, or has every environment that the run uses",
        "index",
        "field",
        "hosts",
        "problems",
    )
    INTERNAL = "internal", "the service failed; its log says more"
    INVALID_ARGUMENTS = (
        "invalid_arguments",
        "an argument is missing, unknown or not allowed",
        "problems",
        "field",
        "value",
        "allowed",
    )
    INVALID_CONFIG = "invalid_config", "the worker does not take this configuration", "index", "field", "problems"
    INVALID_EXPERIMENT = "invalid_experiment", "the fields of the experiment are not right", "problems"
    MISSING_CHECKPOINT = "missing_checkpoint", "the run that an operator names has no such checkpoint", "field", "value"
    MISSING_FILE = "missing_file", "a checkpoint that the config names is gone", "field", "value"
    NOTHING_TO_RERUN = "nothing_to_rerun", "no run of the group has failed or was lost", "value"
    NOT_FINAL = "not_final", "the run has not ended", "run", "state"
    NOT_INSTALLED = "not_installed", "the environment of the worker is not installed on this host"
    NOT_INTERACTIVE = "not_interactive", "the run was not submitted with `interactive: true`", "run"
    NOT_PAUSABLE = (
        "not_pausable",
        "the worker cannot pause, or does not train yet: it handles no such signal",
        "run",
    )
    NOT_READING = "not_reading", "the worker does not read: its stdin has no room for the line", "run"
    NOT_STARTED = "not_started", "the worker of the attempt has not started yet", "run"
    STOPPING = "stopping", "the supervisor is about to end"
    STORE_UNAVAILABLE = "store_unavailable", "the store cannot be read or written now"
    TOO_LARGE = "too_large", "the answer would be larger than a message may be, or take too long: ask for less"
    UNKNOWN = "unknown", "the refusal has a code that this version does not know; the message names it"
    UNKNOWN_ATTEMPT = "unknown_attempt", "the host has no such attempt", "run"
    UNKNOWN_COMMAND = "unknown_command", "the service has no such command", "value", "near", "allowed"
    UNKNOWN_EXPERIMENT = "unknown_experiment", "no experiment has that name", "value", "near"
    UNKNOWN_FILE = "unknown_file", "the run has no such file that may be read", "value"
    UNKNOWN_GROUP = "unknown_group", "no group, or more than one, fits the name", "value", "near", "candidates"
    UNKNOWN_HOST = "unknown_host", "no host of that name has reported", "value", "near", "allowed"
    UNKNOWN_PROFILE = (
        "unknown_profile",
        "the worker has no such profile",
        "index",
        "field",
        "value",
        "near",
        "allowed",
    )
    UNKNOWN_RUN = "unknown_run", "no run has that id or name", "index", "field", "value", "near"
    UNKNOWN_STREAM = "unknown_stream", "the host carries no such stream", "run"
    UNKNOWN_TAG = "unknown_tag", "no host has the required tags", "index", "field", "value", "near", "allowed"
    UNKNOWN_WORKER = "unknown_worker", "no host has such a worker", "index", "field", "value", "near", "allowed"
    UNUSABLE_ENVIRONMENT = "unusable_environment", "the environment of the worker cannot be built or used"

    @classmethod
    def read(cls, code: str) -> RefusalCode:
        """The member of that code; a newer service may send one that is not known here."""
        return next((each for each in cls if each == code), cls.UNKNOWN)


class Problem(Model):
    """One thing that is wrong with some arguments or a configuration."""

    field: str = Field(description="dotted path, such as `spec.resources.cpus` or `config.seed`")
    message: str = Field(description="what is wrong with it, and what is allowed")
    value: Any = Field(default=None, description="what was given, shortened if it is long")
    near: list[str] = Field(default_factory=list, description="names that look like the one given")

    def __str__(self) -> str:
        """Write the field and what is wrong with it."""
        return f"{self.field}: {self.message}"


class RefusalDetails(Model):
    """What a caller needs to act on a refusal. Only the fields that have something to say are sent."""

    index: int | None = Field(default=None, description="which run of a `submit_many`, from 0")
    field: str = Field(default="", description="the argument, or the field of the spec, that is wrong")
    value: Any = Field(default=None, description="what was given, shortened if it is long")
    allowed: list[str] = Field(default_factory=list, description="every value that would have been accepted")
    near: list[str] = Field(default_factory=list, description="accepted values that look like the one given")
    candidates: list[str] = Field(default_factory=list, description="ids of runs, or names of groups, that fit")
    run: str = Field(default="", description="the id of the run in question")
    state: str = Field(default="", description="its state")
    hosts: dict[str, Resources] = Field(default_factory=dict, description="what each host in question has in all")
    problems: list[Problem] = Field(default_factory=list, description="each thing that is wrong")


def brief(value: object) -> object:
    """A value as it was given if it is plain and short, else as text, cut."""
    if isinstance(value, str) and len(value) <= _LONGEST_VALUE:
        return value
    plain = value is None or isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63)
    return value if plain else shown(value)


def explain(error: ValidationError) -> str:
    """Say what was wrong with some input in one line."""
    return "; ".join(map(str, find_problems(error)))


def find_problems(error: ValidationError) -> list[Problem]:
    """List what was wrong with some input: each field, the value given, and what is allowed."""
    found = [_problem(each) for each in error.errors(include_url=False)[:_MOST_PROBLEMS]]
    if (more := error.error_count() - len(found)) > 0:
        found.append(Problem(field="…", message=f"{more:,} more problems"))
    return found


def _problem(each: ErrorDetails) -> Problem:
    where = ".".join(str(part)[:_LONGEST_NAME] for part in each["loc"]) or "value"
    said = _sentence(each)
    if each["type"] == "missing":
        return Problem(field=where, message=said)
    return Problem(field=where, message=f"{said}, got {shown(each['input'])}", value=brief(each["input"]))


# Our sentences for pydantic's kinds of error; what stands in braces is in their context.
_SENTENCES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a map",
    "enum": "must be {expected}",
    "extra_forbidden": "is unknown",
    "finite_number": "must be finite",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_attributes_type": "must be a map",
    "model_type": "must be a map",
    "set_type": "must be a list",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be text",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "tuple_type": "must be a list",
    "value_error": "{error}",
}


def _sentence(each: ErrorDetails) -> str:
    sentence = _SENTENCES.get(each["type"])
    if sentence is None:
        return each["msg"].replace("Input should be", "must be")
    context = each.get("ctx", {})
    return sentence.format(**{name: f"{it:g}" if isinstance(it, float) else it for name, it in context.items()})
