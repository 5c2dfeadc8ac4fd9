"""Curves as a picture for a paper or a slide, drawn by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_services.cli.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.statistics.curves import Curve

__all__ = ["save_figure"]


def save_figure(path: Path, curves: dict[str, Curve], metric: str) -> None:
    """Draw mean curves with their intervals; the extension selects the format (png, svg, pdf)."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a moment to import

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above, and after the choice of a backend

    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for label, curve in curves.items():
        (line,) = axes.plot(curve.steps, curve.mean, label=label, linewidth=1.6)
        axes.fill_between(curve.steps, curve.low, curve.high, color=line.get_color(), alpha=0.18, linewidth=0)
    axes.set(xlabel="environment steps", ylabel=metric.replace("_", " "))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:  # a folder that is not there, an extension that is no format
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        plt.close(figure)
