"""Writes the folder of a report."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    trainings: Sequence[Training] = (),
) -> Report:
    """Make the report of an experiment's folder, in `out` or in `report/` beside its files.

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
        _write(folder, fresh, found, _copy_videos(folder, found, fresh), trainings, rerun)
    except OSError as error:
        raise ReportError(f"cannot write {target}: {error.strerror or error}") from error
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)
    index = target / "index.html"
    return Report(index, lines_of(found, report=str(index), rerun=rerun))


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


def _copy_videos(folder: Path, found: Analysis, fresh: Path) -> Videos:
    """Copy the videos that are on this machine, so that the folder can be moved; count the others."""
    videos: Videos = {}
    missing = 0
    for each in found.experiment.get("videos_recorded") or ():
        entry: Mapping[str, Any] = each
        name, number, path = str(entry.get("lineup")), entry.get("episode"), folder / str(entry.get("path"))
        if name not in found.plays or not isinstance(number, int) or not path.is_file():
            missing += 1
            continue
        (fresh / "videos").mkdir(exist_ok=True)
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
        videos[name, number] = f"videos/{len(videos)}-{slug}-{number}{path.suffix}"
        shutil.copyfile(path, fresh / videos[name, number])
    if missing:
        are = "video is" if missing == 1 else "videos are"
        found.warnings.append(f"{missing} {are} not on this machine, and so not in the report.")
    return videos
