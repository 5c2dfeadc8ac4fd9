"""Parses a sweep file and expands it into runs. Pure: the same file and seed give the same runs."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mosaic_bus.wording import did_you_mean
from mosaic_services.config_fields import put
from mosaic_services.specs import FIELDS, SpecError, check_path, locate, make_spec, parse_word, path_of
from mosaic_services.sweeps.distributions import Distribution, identity, read_distribution, refuse_twins, shown
from mosaic_services.sweeps.naming import name_runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mosaic_bus.messages import RunSpec

__all__ = ["MOST_RUNS", "Driver", "Plan", "Planned", "new_group", "read_plan"]

MOST_RUNS = 20_000
_LONGEST_NAME = 40
_SEED = "config.seed"
# Draws per sample before giving up. Enough to find all of 20,000 combinations by chance; a tiny range would never end.
_DRAWS_PER_SAMPLE = 50
_VARIED = ("list", "grid", "random", "seeds")
_DRIVEN = ("trials", "metric", "direction", "concurrent", "prune")
_KEYS = ("name", *_VARIED, "samples", "seed", "driver", *_DRIVEN)
_NOT_VARIED = ("name", "group", "replaces")

# The values of one run: dotted path -> value.
Chosen = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: its values and its spec."""

    chosen: Chosen
    spec: RunSpec


@dataclass(frozen=True)
class Driver:
    """Settings of a driver."""

    trials: int
    metric: str
    direction: Literal["maximize", "minimize"]
    concurrent: int
    prune: bool


@dataclass(frozen=True)
class Plan:
    """A sweep: a base run and what varies in it."""

    where: str
    name: str
    base: dict[str, Any]
    # `sweep:` as parsed, with overrides.
    sweep: dict[str, Any]
    entries: list[Chosen]
    grid: dict[str, list[Any]]
    random: dict[str, Distribution]
    samples: int
    seed: int
    # A count N means 1 to N, so that a huge one costs nothing until it is expanded.
    seeds: int | list[int]
    driver: Driver | None

    @property
    def factors(self) -> list[tuple[str, int]]:
        """The factors whose product is the number of runs."""
        seeds = self.seeds if isinstance(self.seeds, int) else len(self.seeds)
        return [
            *([("list", len(self.entries))] if self.entries else []),
            *((_bare(path), len(values)) for path, values in self.grid.items()),
            *([("samples", self.samples)] if self.random else []),
            *([("seeds", seeds)] if seeds else []),
        ]

    @property
    def count(self) -> int:
        """The number of runs, known before expansion."""
        if self.driver:
            return self.driver.trials
        total = 1
        for _, count in self.factors:
            total *= count
        return total

    def expand(self, group: str) -> list[Planned]:
        """Expand a sweep without a driver into its runs."""
        chosen = list(self._choices())
        names = name_runs(self.name, chosen)
        return [Planned(values, self.spec(values, name, group)) for values, name in zip(chosen, names, strict=True)]

    def spec(self, chosen: Chosen, name: str, group: str) -> RunSpec:
        """Make the spec of one run."""
        fields = dict(self.base)
        for path, value in chosen.items():
            put(fields, path.split("."), value)
        said = ", ".join(f"{_bare(path)}={shown(value)}" for path, value in chosen.items())
        return make_spec({**fields, "name": name, "group": group}, [], f"{self.where}: run {name} ({said})")

    def _choices(self) -> Iterator[Chosen]:
        grid = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        seeds = list(range(1, self.seeds + 1)) if isinstance(self.seeds, int) else self.seeds
        seeded: list[Chosen] = [{_SEED: seed} for seed in seeds] or [{}]
        for parts in itertools.product(self.entries or [{}], grid, self._samples(), seeded):
            yield {path: value for part in parts for path, value in part.items()}

    def _samples(self) -> list[Chosen]:
        """Draw until there are enough distinct samples."""
        if not self.random:
            return [{}]
        source = random.Random(self.seed)
        drawn: dict[str, Chosen] = {}
        for _ in range(self.samples * _DRAWS_PER_SAMPLE):
            values = {path: each.draw(source) for path, each in self.random.items()}
            drawn.setdefault(identity(values), values)
            if len(drawn) == self.samples:
                return list(drawn.values())
        raise SpecError(
            f"{self.where}: sweep.random: {self.samples:,} samples gave only {len(drawn):,} different combinations",
            "widen the ranges, or ask for fewer",
        )


def new_group(name: str, suffix: str) -> str:
    """Make a unique group name for one submission of a sweep."""
    fit = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:_LONGEST_NAME]
    return f"{fit or 'sweep'}-{suffix.lower()}"


def read_plan(document: dict[str, Any], words: list[str], path: Path) -> Plan:
    """Apply KEY=VALUE overrides to a sweep file, and validate everything that needs no stack."""
    where = str(path)
    fields = dict(document)
    fixed = [_override(fields, word) for word in words]
    sweep = fields.pop("sweep", None)
    if not isinstance(sweep, dict):
        said = "has no sweep:" if sweep is None else f"sweep: {shown(sweep)} is not a map"
        raise SpecError(f"{where}: {said}", "a file for one run is submitted with: mosaic submit FILE")
    _refuse_unknown(sweep, where)
    read = _Reader(where, sweep)
    name = sweep.get("name", fields.get("name") or path.stem)
    if not isinstance(name, str) or not name:
        raise SpecError(f"{where}: sweep.name: {shown(name)} is not a name")
    plan = Plan(
        where=where,
        name=name[:_LONGEST_NAME],
        base=fields,
        sweep=sweep,
        entries=read.entries(),
        grid=read.grid(),
        random=read.random(),
        samples=read.samples(),
        seed=read.integer("seed", 0, low=0),
        seeds=read.seeds(),
        driver=read.driver(),
    )
    _refuse_clashes(plan, fixed)
    _refuse_count(plan)
    make_spec({**plan.base, "name": "", "group": ""}, [], where)
    return plan


def _override(fields: dict[str, Any], word: str) -> str:
    """Apply a KEY=VALUE override; return the path that it sets."""
    keys, value = parse_word(word, (*FIELDS, "sweep"))
    if keys[0] == "sweep" and len(keys) > 2:  # noqa: PLR2004 - sweep.grid.config.lr is the key config.lr of sweep.grid
        keys = [*keys[:2], ".".join(keys[2:])]
    put(fields, keys, value)
    return ".".join(keys)


def _refuse_unknown(sweep: dict[str, Any], where: str) -> None:
    for key in sweep:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS) or f"the fields are: {', '.join(_KEYS)}"
            raise SpecError(f"{locate(where, ['sweep', key])}: sweep: field {key!r} is unknown", hint)


def _refuse_clashes(plan: Plan, fixed: list[str]) -> None:
    """Refuse a key that is set by two parts of the sweep, or overridden although the sweep varies it."""
    entries = {path: "list" for entry in plan.entries for path in entry}
    sources = [entries, dict.fromkeys(plan.grid, "grid"), dict.fromkeys(plan.random, "random")]
    if plan.seeds:
        sources.append({_SEED: "seeds"})
    seen: dict[str, str] = {}
    for source in sources:
        for path, part in source.items():
            if path in seen:
                raise SpecError(f"{plan.where}: {_bare(path)} is in sweep.{seen[path]} and in sweep.{part}", "keep one")
            seen[path] = part
    for path in fixed:
        if path in seen:
            part = seen[path]
            hint = (
                f"override that instead: sweep.{part}=…"
                if part in {"list", "seeds"}
                else f"try: sweep.{part}.{_bare(path)}=…"
            )
            raise SpecError(f"{_bare(path)}=… is given, but sweep.{part} of {plan.where} varies it", hint)
    if not seen:
        raise SpecError(f"{plan.where}: sweep: nothing varies", f"add one of: {', '.join(_VARIED)}")


def _refuse_count(plan: Plan) -> None:
    possible = 1.0
    for each in plan.random.values():
        possible *= each.size
    if plan.random and not plan.driver and plan.samples > possible:
        raise SpecError(
            f"{plan.where}: sweep.samples: {plan.samples:,} are asked for, but random has only {possible:,.0f} "
            "different combinations",
            "ask for fewer, or use grid:",
        )
    if plan.count > MOST_RUNS:
        made_of = " × ".join(f"{name} {count:,}" for name, count in plan.factors)
        said = f"{plan.driver.trials:,} trials" if plan.driver else f"{plan.count:,} runs ({made_of})"
        raise SpecError(f"{plan.where}: {said} are too many: at most {MOST_RUNS:,}", "vary less, or split it")


def _bare(path: str) -> str:
    return path.removeprefix("config.")


class _Reader:
    """Parses the parts of `sweep:`; errors name the place in the file."""

    def __init__(self, where: str, sweep: dict[str, Any]) -> None:
        self._where = where
        self._sweep = sweep

    def _at(self, part: str) -> str:
        return f"{self._where}: sweep.{part}"

    def _map(self, part: str) -> dict[str, Any]:
        given = self._sweep.get(part)
        if part not in self._sweep:
            return {}
        if not isinstance(given, dict) or not given:
            raise SpecError(f"{self._at(part)}: {shown(given)} is not a map of keys", "for example: lr: …")
        return given

    def _paths(self, keys: dict[str, Any], part: str) -> dict[str, Any]:
        """Convert keys to full paths; unknown keys, and keys that may not vary, are refused."""
        found: dict[str, Any] = {}
        for key, value in keys.items():
            path = path_of(str(key))
            check_path(path, self._at(part))
            if path[0] in _NOT_VARIED:
                raise SpecError(
                    f"{self._at(part)}: {key} cannot vary", "the sweep sets the names and the group of its runs"
                )
            if ".".join(path) in found:
                raise SpecError(f"{self._at(part)}: {key} is given twice", "config.KEY and KEY are the same")
            found[".".join(path)] = value
        return found

    def entries(self) -> list[Chosen]:
        given = self._sweep.get("list", [])
        if not isinstance(given, list) or ("list" in self._sweep and not given):
            raise SpecError(f"{self._at('list')}: {shown(given)} is not a list of maps", "for example: - {lr: 0.1}")
        read = []
        for each in given:
            if not isinstance(each, dict) or not each:
                raise SpecError(f"{self._at('list')}: {shown(each)} is not a map of keys", "for example: - {lr: 0.1}")
            read.append(self._paths(each, "list"))
        refuse_twins(read, self._at("list"))
        return read

    def grid(self) -> dict[str, list[Any]]:
        grid = self._paths(self._map("grid"), "grid")
        for path, values in grid.items():
            at = f"{self._at('grid')}.{_bare(path)}"
            if not isinstance(values, list):
                raise SpecError(f"{at}: {shown(values)} is not a list of values", f"write [{shown(values)}]")
            if not values:
                raise SpecError(f"{at}: the list is empty", "give at least one value, or leave the key out")
            refuse_twins(values, at)
        return grid

    def random(self) -> dict[str, Distribution]:
        keys = self._paths(self._map("random"), "random")
        return {path: read_distribution(value, f"{self._at('random')}.{_bare(path)}") for path, value in keys.items()}

    def samples(self) -> int:
        if "samples" in self._sweep and "random" not in self._sweep:
            raise SpecError(f"{self._at('samples')}: there is no random to sample from", "add random:")
        if "random" in self._sweep and "driver" not in self._sweep and "samples" not in self._sweep:
            raise SpecError(f"{self._at('random')}: how many samples?", "add samples: N beside it")
        return self.integer("samples", 0, low=1)

    def seeds(self) -> int | list[int]:
        given = self._sweep.get("seeds", 0)
        if isinstance(given, int) and not isinstance(given, bool):
            return self.integer("seeds", 0, low=1)
        whole = isinstance(given, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
        if not isinstance(given, list) or not given or not whole:
            raise SpecError(
                f"{self._at('seeds')}: {shown(given)} is neither a number of seeds nor a list of them",
                "for example: seeds: 5   or   seeds: [1, 1000, 2000]",
            )
        refuse_twins(given, self._at("seeds"))
        return given

    def integer(self, key: str, default: int, *, low: int) -> int:
        value = self._sweep.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or (key in self._sweep and value < low):
            raise SpecError(f"{self._at(key)}: {shown(value)} is not a whole number of at least {low}")
        return value

    def driver(self) -> Driver | None:
        name = self._sweep.get("driver")
        if name is None:
            for key in _DRIVEN:
                if key in self._sweep:
                    raise SpecError(f"{self._at(key)} needs a driver", "add driver: optuna, or leave it out")
            return None
        if name != "optuna":
            raise SpecError(f"{self._at('driver')}: {shown(name)} is unknown", "the only driver is: optuna")
        for key in ("list", "grid", "seeds", "samples"):
            if key in self._sweep:
                raise SpecError(
                    f"{self._at(key)} and a driver exclude each other", "put what it searches under random:"
                )
        if "random" not in self._sweep:
            raise SpecError(f"{self._at('driver')}: there is nothing to search", "add random: with distributions")
        if "trials" not in self._sweep:
            raise SpecError(f"{self._at('driver')}: how many trials?", "add trials: N")
        metric = self._sweep.get("metric", "episode_return")
        if not isinstance(metric, str) or not metric:
            raise SpecError(f"{self._at('metric')}: {shown(metric)} is not a name", "for example: episode_return")
        direction = self._sweep.get("direction", "maximize")
        if direction not in {"maximize", "minimize"}:
            raise SpecError(f"{self._at('direction')}: {shown(direction)} is unknown", "maximize or minimize")
        prune = self._sweep.get("prune", False)
        if not isinstance(prune, bool):
            raise SpecError(f"{self._at('prune')}: {shown(prune)} is neither true nor false")
        return Driver(
            trials=self.integer("trials", 1, low=1),
            metric=metric,
            direction=direction,
            concurrent=self.integer("concurrent", 4, low=1),
            prune=prune,
        )
