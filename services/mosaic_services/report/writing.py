"""Writes the folder of a report."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic_services.report.analysis import analyse
from mosaic_services.report.errors import ReportError
from mosaic_services.report.figures import draw
from mosaic_services.report.pages import Videos, episode_pages, index_page
from mosaic_services.report.source import Training, read_experiment, read_records
from mosaic_services.report.terminal import lines_of
from mosaic_services.report.texts import episodes_csv, latex, markdown, pairs_csv, scores_csv, summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mosaic_services.report.analysis import Analysis

__all__ = ["Report", "write_report"]

_MARK = "summary.json"


@dataclass(frozen=True)
class Report:
    """A report that was written."""

    index: Path
    lines: list[str]
    """The same in short, for a terminal."""


def write_report(
    folder: Path,
    out: Path | None = None,
    *,
    trainings: Sequence[Training] = (),
    videos: Mapping[tuple[str, int], Path] | None = None,
    played: str = "",
) -> Report:
    """Make the report of an experiment's folder, in `out` or in `report/` beside its files.

    `videos` has the files of filmed episodes, by lineup and episode; `played` is for the terminal, see `terminal`.
    An earlier report in that place is replaced once the new one is whole; any other folder that has files is refused.
    """
    target = folder / "report" if out is None else out
    if target.exists() and not _replaceable(target):
        raise ReportError(f"{target} exists and is no report. Choose another folder, or remove it.")
    experiment = read_experiment(folder)
    found = analyse(experiment, read_records(folder))
    rerun = str(experiment.get("command") or "")
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        (fresh / "episodes").mkdir(parents=True)
        (fresh / "figures").mkdir()
        _write(folder, fresh, found, _copy_videos(videos or {}, found, fresh), trainings, rerun)
    except OSError as error:
        raise ReportError(f"cannot write {target}: {error.strerror or error}") from error
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)
    index = target / "index.html"
    return Report(index, lines_of(found, played=played, report=str(index), rerun=rerun))


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / _MARK).exists() or not any(target.iterdir()))


def _write(
    folder: Path, fresh: Path, found: Analysis, videos: Videos, trainings: Sequence[Training], rerun: str
) -> None:
    figures = draw(found, trainings)
    for figure in figures:
        (fresh / "figures" / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")
        (fresh / "figures" / f"{figure.name}.pdf").write_bytes(figure.pdf)
    for name, page in episode_pages(found, videos):
        (fresh / "episodes" / name).write_text(page, encoding="utf-8")
    texts = {
        "index.html": index_page(found, figures, videos, rerun),
        "report.md": markdown(found, rerun),
        "scores.tex": latex(found),
        "scores.csv": scores_csv(found),
        "comparisons.csv": pairs_csv(found),
        "episodes.csv": episodes_csv(found),
    }
    for name, text in texts.items():
        (fresh / name).write_text(text, encoding="utf-8")
    for name in ("episodes.jsonl", "experiment.json"):
        shutil.copyfile(folder / name, fresh / name)
    (fresh / _MARK).write_bytes(summary(found))


def _copy_videos(given: Mapping[tuple[str, int], Path], found: Analysis, fresh: Path) -> Videos:
    """Copy videos, so that the folder can be moved."""
    videos: Videos = {}
    for (name, number), path in given.items():
        if name in found.plays:
            (fresh / "videos").mkdir(exist_ok=True)
            slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
            videos[name, number] = f"videos/{len(videos)}-{slug}-{number}{path.suffix}"
            shutil.copyfile(path, fresh / videos[name, number])
    return videos
