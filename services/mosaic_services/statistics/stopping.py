"""The stopping rule: after how many episodes an experiment may end. Pure: equal scores give equal decisions.

Looking at results again and again until they please gives wrong intervals and false winners. This rule looks only after
50, 100, 200 … complete episodes, and divides the error that it may make over all looks and all claims (Bonferroni), so
that its intervals hold at whichever look it stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mosaic_services.statistics.looks import CAP, FIRST_LOOK
from mosaic_services.statistics.resampling import CONFIDENCE, Interval, t_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["Claim", "Decision", "Finding", "Reason", "Rule", "comparisons", "look", "means"]

Reason = Literal["narrow", "decided", "cap", "more"]


@dataclass(frozen=True)
class Rule:
    """When to stop: either `width` (of every interval) or `decided` (every comparison); at the latest at the cap."""

    width: float | None = None
    decided: bool = False
    cap: int = CAP
    first: int = FIRST_LOOK
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        """Check the values."""
        if (self.width is None) == (not self.decided):
            raise ValueError("until: give either width: NUMBER or decided: true")
        if self.width is not None and not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"until.width: {self.width} is not above 0")
        if self.first < 2 or self.cap < self.first:  # noqa: PLR2004 - a single episode has no spread
            raise ValueError(f"until.cap: {self.cap} is below the first look, after {max(self.first, 2)} episodes")

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of episodes after which the rule looks: 50, 100, 200 … and the cap."""
        doubled = [self.first << power for power in range((self.cap // self.first).bit_length())]
        return (*(each for each in doubled if each < self.cap), self.cap)

    def level(self, claims: int) -> float:
        """The confidence of one interval at one look, such that all of them hold together."""
        return 1 - (1 - self.confidence) / (len(self.looks) * max(claims, 1))


@dataclass(frozen=True)
class Claim:
    """What one interval is about: a weighted sum of the scores of lineups in the same episode."""

    name: str
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """What a look says about a claim."""

    name: str
    episodes: int
    mean: float
    interval: Interval
    settled_at: int | None
    """The first look at which the interval was narrow enough, or was on one side of zero."""


@dataclass(frozen=True)
class Decision:
    """Whether to stop, what to play otherwise, and why."""

    stop: bool
    reason: Reason
    play: dict[str, int]
    """For each lineup that plays on: how many episodes it shall have in all before the next look."""
    findings: tuple[Finding, ...]
    level: float
    """The confidence of each interval of the findings."""
    words: str
    """The rule and its result, for the report."""


def means(lineups: Sequence[str]) -> list[Claim]:
    """Claims for `width`: the mean score of each lineup."""
    return [Claim(name, {name: 1.0}) for name in lineups]


def comparisons(lineups: Sequence[str]) -> list[Claim]:
    """Claims for `decided`: the difference between each two lineups in the same episodes."""
    return [
        Claim(f"{name} - {other}", {name: 1.0, other: -1.0})
        for place, name in enumerate(lineups)
        for other in lineups[place + 1 :]
    ]


def look(scores: Mapping[str, Sequence[float] | Array], claims: Sequence[Claim], rule: Rule) -> Decision:
    """Decide on scores: for each lineup those of episodes 0 … n-1, all of them complete.

    Scores after a lineup's last look have no influence, so the decision does not depend on the order in which
    episodes were completed.
    """
    found = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    missing = {name: rule.first for name, values in found.items() if len(values) < rule.first}
    level = rule.level(len(claims))
    if missing:
        return Decision(False, "more", missing, (), level, _words(rule, level, len(claims), "more", ()))
    seen = np.concatenate([np.zeros(0), *(values[: rule.first] for values in found.values())])
    findings = tuple(_examine(claim, found, seen, rule, level) for claim in claims)
    open_ = [(finding, claim) for finding, claim in zip(findings, claims, strict=True) if finding.settled_at is None]
    unfinished = [pair for pair in open_ if pair[0].episodes < rule.cap]
    if not open_:
        reason: Reason = "decided" if rule.decided else "narrow"
    else:
        reason = "more" if unfinished else "cap"
    play: dict[str, int] = {}
    if reason == "more":
        least, claim = max(unfinished, key=lambda pair: _uncertainty(pair[0], rule))
        upto = next(each for each in rule.looks if each > least.episodes)
        play = {name: upto for name in claim.weights if len(found[name]) < upto}
    words = _words(rule, level, len(claims), reason, findings)
    return Decision(reason != "more", reason, play, findings, level, words)


def _examine(claim: Claim, scores: Mapping[str, Array], seen: Array, rule: Rule, level: float) -> Finding:
    """Look at a claim at each of its looks so far. What one look has settled stays settled."""
    complete = min(len(scores[name]) for name in claim.weights)
    settled_at = None
    for episodes in (each for each in rule.looks if each <= complete):
        parts = {name: scores[name][:episodes] for name in claim.weights}
        values = np.sum([weight * parts[name] for name, weight in claim.weights.items()], axis=0)
        known = np.concatenate([seen, *parts.values()])
        interval = _interval(values, list(claim.weights.values()), (known.min(), known.max()), level)
        low, high = interval
        if settled_at is None and (high - low <= rule.width if rule.width is not None else low > 0 or high < 0):
            settled_at = episodes
        finding = Finding(claim.name, episodes, float(values.mean()), interval, settled_at)
    return finding


def _interval(values: Array, weights: Sequence[float], known: tuple[float, float], level: float) -> Interval:
    """Student's t, widened where the sample may have missed a rare outcome.

    With probability above 1 - a, an outcome that did not occur in n episodes is rarer than 1 - a^(1/n). Suppose it is
    that frequent, and is as extreme as any score that the experiment has seen: that moves the mean by at most this.
    Without it, fifty equal scores would give an interval of width zero.
    """
    low, high = t_interval(values, level) or (-math.inf, math.inf)
    mean = float(values.mean())
    lowest = sum(weight * known[0 if weight > 0 else 1] for weight in weights)
    highest = sum(weight * known[1 if weight > 0 else 0] for weight in weights)
    unseen = 1 - ((1 - level) / 2) ** (1 / len(values))
    return min(low, mean - unseen * (mean - lowest)), max(high, mean + unseen * (highest - mean))


def _uncertainty(finding: Finding, rule: Rule) -> float:
    """How far a claim is from being settled."""
    low, high = finding.interval
    if rule.width is not None:
        return high - low
    return -abs(finding.mean) / (high - low) if high > low else 0.0


def _words(rule: Rule, level: float, claims: int, reason: Reason, findings: Sequence[Finding]) -> str:
    goal = f"every interval is at most {rule.width:g} wide" if rule.width is not None else "every comparison is decided"
    looks = rule.looks
    listed = ", ".join(f"{each:,}" for each in looks) if len(looks) < 5 else f"{looks[0]}, {looks[1]} … {looks[-1]:,}"  # noqa: PLR2004 - that many are easy to read
    stated = (
        f"Stop when {goal}; look only after {listed} complete episodes. The error of {1 - rule.confidence:.2g} is "
        f"divided over {len(looks)} looks and {claims} {'claim' if claims == 1 else 'claims'}, so each interval has "
        f"confidence {level:.4g} and all hold together with {rule.confidence:.2g}."
    )
    if reason == "more":
        return f"{stated} The experiment has not stopped yet."
    if not findings:
        return f"{stated} There was nothing to settle."
    longest = max(each.episodes for each in findings)
    if reason == "cap":
        unsettled = [each.name for each in findings if each.settled_at is None]
        return (
            f"{stated} Stopped at the cap of {rule.cap:,} episodes with {len(unsettled)} open: {', '.join(unsettled)}."
        )
    return f"{stated} Stopped after {longest:,} episodes: the goal was reached."
