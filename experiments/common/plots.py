"""Plots as SVG files: the same bytes for the same numbers."""

import io
import pathlib
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from contrastive.whole import whole_file
from experiments.common.outcome import Plot

COLOURS = ("#2f5bd7", "#d9692f", "#12805c", "#8a4fc4", "#a57c00", "#c03a72", "#5a5e63", "#1c9aa0")
_STYLE: Any = {
    "svg.hashsalt": "contrastive",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8c9196",
    "axes.labelcolor": "#5a5e63",
    "xtick.color": "#5a5e63",
    "ytick.color": "#5a5e63",
    "axes.grid": True,
    "grid.color": "#e5e3dc",
    "legend.frameon": False,
}


def write(plot: Plot, folder: pathlib.Path) -> pathlib.Path:
    """Draws ``NAME.svg`` and returns its path."""
    file = folder / f"{plot.name}.svg"
    with whole_file(file) as path:
        path.write_text(svg(plot), encoding="utf-8")
    return file


def svg(plot: Plot) -> str:
    """The plot as SVG text."""
    out = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for number, line in enumerate(plot.lines):
            colour = COLOURS[number % len(COLOURS)]
            mark = "o" if len(line.x) <= 16 else None
            style = "-" if number < len(COLOURS) else "--"
            axes.plot(
                line.x, line.y, style, label=line.label, color=colour, marker=mark, markersize=3.5
            )
            if line.low is not None and line.high is not None:
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, lw=0)
        for label, value in plot.references:
            axes.axhline(value, color="#8c9196", lw=0.9, ls=":", label=label)
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        if plot.x_log:
            axes.set_xscale("log")
        if plot.y_log:
            axes.set_yscale("log")
        if len(plot.lines) + len(plot.references) > 1:
            axes.legend(fontsize=8)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
