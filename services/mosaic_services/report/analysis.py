"""What an experiment shows: everything that tables, figures and pages of a report print."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic_services.report.cautions import cautions
from mosaic_services.report.errors import ReportError
from mosaic_services.report.failures import Failure, count_failures
from mosaic_services.report.source import lineups_of
from mosaic_services.statistics.episodes import decide, read_play
from mosaic_services.statistics.lotteries import alpha_rank, cycles, maximal_lottery
from mosaic_services.statistics.pairs import Difference, Improvement, improvement, paired_difference
from mosaic_services.statistics.ratings import Games, Meeting, Ratings, rate, win_matrix
from mosaic_services.statistics.resampling import CONFIDENCE, share_interval
from mosaic_services.statistics.scores import AlgorithmScore, Score, algorithm_score, score
from mosaic_services.statistics.stopping import Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mosaic_services.statistics.episodes import Play
    from mosaic_services.statistics.stopping import Decision

    Array = npt.NDArray[np.float64]

__all__ = ["Algorithm", "Analysis", "Contest", "Pair", "Profile", "Row", "analyse"]

# With more rows than this, each is compared with the best one only.
_MOST_FOR_ALL_PAIRS = 10
_PROFILE_POINTS = 120


@dataclass(frozen=True)
class Row:
    """What is scored: a lineup, or in a game an operator over all its lineups."""

    name: str
    label: str
    score: Score
    values: Array
    """One score per episode."""
    episodes: npt.NDArray[np.int64]
    lineup: str
    """The lineup that it links to."""
    operator: str | None
    """The operator, if there is one alone."""
    failures: int


@dataclass(frozen=True)
class Algorithm:
    """Operators that come from trainings with the same algorithm."""

    name: str
    members: tuple[str, ...]
    score: AlgorithmScore
    shared_runs: bool
    """Whether two of them come from the same training."""


@dataclass(frozen=True)
class Pair:
    """Two rows compared."""

    first: str
    second: str
    improvement: Improvement
    difference: Difference | None
    """None if they share no episode with the same seed."""


@dataclass(frozen=True)
class Profile:
    """Share of episodes above each threshold, with a pointwise band."""

    thresholds: Array
    shares: dict[str, tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Contest:
    """Games between operators."""

    operators: list[str]
    meetings: dict[tuple[str, str], Meeting]
    ratings: Ratings
    cycles: list[list[str]]
    lottery: dict[str, float]
    alpha_rank: dict[str, float]


@dataclass
class Analysis:
    """Everything that a report prints."""

    experiment: Mapping[str, Any]
    plays: dict[str, Play]
    confidence: float
    """Of each interval: 0.95, or more if a stopping rule looked several times."""
    target: float | None
    rows: list[Row]
    algorithms: list[Algorithm]
    pairs: list[Pair]
    profile: Profile | None
    contest: Contest | None
    failures: list[Failure]
    decision: Decision | None
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.experiment.get("name", "experiment"))

    @property
    def score_name(self) -> str:
        """What a score is."""
        return "points per game" if self.contest else "return"


def analyse(experiment: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Analysis:
    """Work out all numbers of a report."""
    lineups = lineups_of(experiment)
    first_of = {(record["lineup"], record["episode"]): record for record in reversed(list(records))}
    try:
        plays = read_play(first_of.values(), lineups)
    except KeyError as error:
        raise ReportError(f"episodes.jsonl has records of lineup {error}, which experiment.json does not") from error
    decision = _stopping(experiment, first_of.values(), lineups)
    confidence = decision.level if decision else CONFIDENCE
    contest = _contest(plays, confidence)
    target = _target(experiment, plays) if contest is None else None
    rows = (
        _operator_rows(experiment, plays, confidence)
        if contest
        else _lineup_rows(experiment, plays, confidence, target)
    )
    rows.sort(key=lambda row: -row.score.mean)
    found = Analysis(
        experiment=experiment,
        plays=plays,
        confidence=confidence,
        target=target,
        rows=rows,
        algorithms=[] if contest else _algorithms(experiment, rows, confidence, target),
        pairs=[] if contest else _pairs(rows, plays, confidence),
        profile=None if contest else _profile(rows, confidence),
        contest=contest,
        failures=count_failures(plays),
        decision=decision,
    )
    found.warnings = cautions(found)
    return found


def _stopping(
    experiment: Mapping[str, Any],
    records: Collection[Mapping[str, Any]],
    lineups: Mapping[str, Mapping[str, str]],
) -> Decision | None:
    """What the stopping rule says, if there is one."""
    if not experiment.get("until"):
        return None
    if "state" in experiment:
        # The operator service looks only at lineups that can be played. An older plan does not name the others.
        given_up = experiment.get("given_up", lineups.keys() - {record["lineup"] for record in records})
        lineups = {name: agents for name, agents in lineups.items() if name not in given_up}
        records = [record for record in records if record["lineup"] in lineups]
    try:
        return decide(records, lineups, Rule(**experiment["until"]))
    except (TypeError, ValueError) as error:
        raise ReportError(f"experiment.json: {error}") from error


def _target(experiment: Mapping[str, Any], plays: Mapping[str, Play]) -> float | None:
    """The score that the optimality gap refers to: the given one, or the best that was seen."""
    given = experiment.get("target")
    if given is not None:
        return float(given)
    return max((float(play.totals.max()) for play in plays.values() if len(play.totals)), default=None)


def _label(experiment: Mapping[str, Any], name: str) -> str:
    """The name of an operator, with the end of the id of the run that trained it."""
    run = experiment.get("operators", {}).get(name, {}).get("training_run")
    return f"{name}@{str(run)[-6:]}" if run else name


def _lineup_rows(
    experiment: Mapping[str, Any], plays: Mapping[str, Play], confidence: float, target: float | None
) -> list[Row]:
    rows = []
    for name, play in plays.items():
        if not play.scored:
            continue
        operators = play.lineup.operators
        # Several operators that compete, but not two by two: each has its own returns.
        parts = operators if play.competitive else [None]
        for operator in parts:
            values = play.totals if operator is None else play.returns_of(operator)
            alone = operators[0] if len(operators) == 1 else operator
            label = _label(experiment, operators[0]) if operators == [name] else name
            failures = [each for record in play.records for each in record.get("failures") or ()]
            rows.append(
                Row(
                    name=name if operator is None else f"{operator} in {name}",
                    label=label if operator is None else f"{operator} in {name}",
                    score=score(values, confidence, target),
                    values=values,
                    episodes=play.episodes,
                    lineup=name,
                    operator=alone,
                    failures=sum(operator in {None, each.get("operator")} for each in failures),
                )
            )
    return rows


def _operator_rows(experiment: Mapping[str, Any], plays: Mapping[str, Play], confidence: float) -> list[Row]:
    """Points per game of each operator, over all its duels."""
    points: dict[str, list[Array]] = {}
    numbers: dict[str, list[npt.NDArray[np.int64]]] = {}
    failures: dict[str, int] = {}
    lineup_of: dict[str, str] = {}
    for name, play in plays.items():
        if not len(play.points):
            continue
        for operator, found in zip(play.lineup.operators, (play.points, 1 - play.points), strict=True):
            points.setdefault(operator, []).append(found)
            numbers.setdefault(operator, []).append(play.episodes)
            lineup_of.setdefault(operator, name)
            own = (each for record in play.records for each in record.get("failures") or ())
            failures[operator] = failures.get(operator, 0) + sum(each.get("operator") == operator for each in own)
    return [
        Row(
            name=operator,
            label=_label(experiment, operator),
            score=score(np.concatenate(found), confidence),
            values=np.concatenate(found),
            episodes=np.concatenate(numbers[operator]),
            lineup=lineup_of[operator],
            operator=operator,
            failures=failures[operator],
        )
        for operator, found in points.items()
    ]


def _algorithms(
    experiment: Mapping[str, Any], rows: Sequence[Row], confidence: float, target: float | None
) -> list[Algorithm]:
    operators = experiment.get("operators", {})
    members: dict[str, list[Row]] = {}
    for row in rows:
        entry = operators.get(row.operator, {}) if row.operator else {}
        if entry.get("algorithm") and (entry.get("training_run") or entry.get("training_seed") is not None):
            members.setdefault(str(entry["algorithm"]), []).append(row)
    found = []
    for name, group in members.items():
        runs = [operators[row.operator].get("training_run") for row in group]
        known = [run for run in runs if run is not None]
        measured = algorithm_score([row.values for row in group], confidence, target)
        found.append(Algorithm(name, tuple(row.name for row in group), measured, len(set(known)) < len(known)))
    return found


def _pairs(rows: Sequence[Row], plays: Mapping[str, Play], confidence: float) -> list[Pair]:
    chosen = list(combinations(rows, 2))
    if len(rows) > _MOST_FOR_ALL_PAIRS:
        chosen = [(rows[0], other) for other in rows[1:]]
    seeds = {
        name: {record["episode"]: record.get("env_seed") for record in play.scored} for name, play in plays.items()
    }
    found = []
    for first, second in chosen:
        shared, left, right = np.intersect1d(first.episodes, second.episodes, return_indices=True)
        mine, yours = seeds[first.lineup], seeds[second.lineup]
        same = np.array([mine[number] == yours[number] for number in shared.tolist()], dtype=bool)
        difference = None
        if same.any():
            difference = paired_difference(first.values[left[same]], second.values[right[same]], confidence)
        found.append(Pair(first.name, second.name, improvement(first.values, second.values, confidence), difference))
    return found


def _profile(rows: Sequence[Row], confidence: float) -> Profile | None:
    if not rows:
        return None
    low, high = min(row.score.low for row in rows), max(row.score.high for row in rows)
    margin = (high - low) * 0.02 or 0.5
    thresholds = np.linspace(low - margin, high + margin, _PROFILE_POINTS)
    shares = {}
    for row in rows:
        count = len(row.values)
        share = 1 - np.searchsorted(np.sort(row.values), thresholds, side="right") / count
        shares[row.name] = (share, *share_interval(share, count, confidence))
    return Profile(thresholds, shares)


def _contest(plays: Mapping[str, Play], confidence: float) -> Contest | None:
    counts: dict[tuple[str, str], Array] = {}
    for play in plays.values():
        if len(play.points):
            first, second = play.lineup.operators
            found = np.array([(play.points == 1).sum(), (play.points == 0.5).sum(), (play.points == 0).sum()])  # noqa: PLR2004 - a draw
            counts[first, second] = counts.get((first, second), np.zeros(3)) + found
    if not counts:
        return None
    games = Games({pair: (int(a), int(b), int(c)) for pair, (a, b, c) in counts.items()})
    meetings = win_matrix(games, confidence)
    operators = games.operators
    points = np.full((len(operators), len(operators)), np.nan)
    for row, one in enumerate(operators):
        for column, other in enumerate(operators):
            if (one, other) in meetings:
                points[row, column] = meetings[one, other].points
    mixed = len(operators) > 2  # noqa: PLR2004 - two cannot be cyclic
    return Contest(
        operators,
        meetings,
        rate(games, confidence),
        [[operators[place] for place in group] for group in cycles(points)] if mixed else [],
        dict(zip(operators, maximal_lottery(points).tolist(), strict=True)),
        dict(zip(operators, alpha_rank(points).tolist(), strict=True)),
    )
