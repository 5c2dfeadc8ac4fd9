"""What a reader of a report should know before trusting its numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from mosaic_services.statistics.scores import FEW_EPISODES, FEW_SEEDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_services.report.analysis import Analysis

__all__ = ["cautions"]

_MOST_NAMED = 4


def cautions(found: Analysis) -> list[str]:
    """List warnings, the gravest first."""
    return [*_incomplete(found), *_failures(found), *_few(found), *_training(found), *_seeds(found), *_numerics(found)]


def _incomplete(found: Analysis) -> Iterable[str]:
    for name, play in found.plays.items():
        if play.unscored:
            yield f"{name}: {play.unscored} of {len(play.records)} episodes have no score: a policy refused them."
    planned = None if found.experiment.get("until") else found.experiment.get("episodes")
    counts = {name: len(play.records) for name, play in found.plays.items()}
    short = {name: count for name, count in counts.items() if isinstance(planned, int) and count < planned}
    if short:
        named = ", ".join(f"{name} has {count:,}" for name, count in list(short.items())[:_MOST_NAMED])
        more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
        yield f"Of {planned:,} episodes, {named}{more}. These numbers are preliminary."
    if found.decision and not found.decision.stop:
        yield "The stopping rule has not stopped the experiment yet. These numbers are preliminary."
    if found.decision and found.decision.reason == "cap":
        yield "The experiment ended at its cap before the stopping rule was satisfied."


def _failures(found: Analysis) -> Iterable[str]:
    total = sum(each.count for each in found.failures)
    cut = sum(record.get("ended") in {"failed", "forfeit"} for play in found.plays.values() for record in play.scored)
    if total:
        yield f"Policies failed {total:,} {'time' if total == 1 else 'times'}; see Failures."
    if cut and not found.contest:
        yield (
            f"{cut:,} episodes ended early because a policy failed. Their score is the return up to that step; where "
            "rewards are negative, an early end looks better than it is."
        )


def _few(found: Analysis) -> Iterable[str]:
    few = [row.name for row in found.rows if row.score.n < FEW_EPISODES]
    if few:
        yield f"Fewer than {FEW_EPISODES} episodes: {', '.join(few)}. Intervals of so few cover less than they say."
    for row in found.rows:
        if row.score.n > 1 and row.score.low == row.score.high:
            rarer = 1 - (1 - found.confidence) ** (1 / row.score.n)
            yield (
                f"{row.name}: all {row.score.n:,} scores are equal, so its intervals have no width. Another outcome "
                f"may still occur in up to {rarer:.1%} of episodes."
            )


def _training(found: Analysis) -> Iterable[str]:
    single = [each for each in found.algorithms if each.score.seeds == 1]
    if single:
        named = ", ".join(f"{each.name} ({each.members[0]})" for each in single)
        yield (
            f"One checkpoint only: {named}. Its intervals are over episodes: they say how well this checkpoint plays, "
            "and nothing about the algorithm. That takes several training seeds."
        )
    for each in found.algorithms:
        if 1 < each.score.seeds < FEW_SEEDS:
            yield f"{each.name}: {each.score.seeds} training seeds. Below {FEW_SEEDS}, intervals over seeds say little."
        if each.shared_runs:
            yield f"{each.name}: two of its checkpoints come from one training run, so they are no independent seeds."


def _seeds(found: Analysis) -> Iterable[str]:
    for name, play in found.plays.items():
        seeds = [record.get("env_seed") for record in play.scored]
        known = [seed for seed in seeds if seed is not None]
        if len(known) > 1 and len(set(known)) == 1:
            yield (
                f"{name}: every episode has the environment seed {known[0]}, so intervals cover nothing but the "
                "randomness of policies."
            )


def _numerics(found: Analysis) -> Iterable[str]:
    mixed = set()
    for play in found.plays.values():
        # An operator may have another fingerprint in another lineup, in which it plays another agent.
        prints: defaultdict[str, set[str]] = defaultdict(set)
        for record in play.scored:
            for name, fingerprint in (record.get("numerics") or {}).items():
                prints[name].add(str(fingerprint))
        mixed |= {name for name, each in prints.items() if len(each) > 1}
    if mixed:
        yield (
            f"Different numerics: {', '.join(sorted(mixed))}. Their episodes were played by machines or versions that "
            "compute different bits; `exact: true` avoids that."
        )
