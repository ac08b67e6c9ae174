"""Line charts as SVG text: no dependency in the page, colours from its style sheet.

Lines carry their values as data attributes, so that the page's script can read them out under the
pointer. Colours are the classes ``s0``, ``s1``, … and ``reference``; the style sheet gives them
light and dark values.
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import TypeAlias

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 26
MOST_POINTS = 300

Number: TypeAlias = int | float


@dataclasses.dataclass(frozen=True)
class Line:
    """One curve; points without a finite value are left out."""

    label: str
    steps: Sequence[Number]
    values: Sequence[Number | None]


@dataclasses.dataclass(frozen=True)
class Chart:
    """What one chart shows.

    Attributes:
      title: What is measured.
      lines: The curves, at most six.
      note: One sentence below the title.
      references: Horizontal lines ``(label, value)``, such as chance.
      band: Lower and upper curve between which the first line's colour is laid, if any.
      log: Logarithmic values.
      share: Values are shares, shown as percentages from 0.
      zero: The axis begins at 0.
      reach: The axis goes at least this far, so that next to nothing looks like it.
      start: Where the horizontal axis begins.
    """

    title: str
    lines: Sequence[Line]
    note: str = ""
    references: Sequence[tuple[str, Number]] = ()
    band: tuple[Line, Line] | None = None
    log: bool = False
    share: bool = False
    zero: bool = False
    reach: Number = -math.inf
    start: Number = 0.0


def points(line: Line) -> list[tuple[float, float]]:
    """The finite points, thinned to what can be seen; the last one stays."""
    pairs = [
        (float(s), float(v))
        for s, v in zip(line.steps, line.values, strict=True)
        if v is not None and math.isfinite(v)
    ]
    stride = -(-len(pairs) // MOST_POINTS) or 1
    kept = pairs[::stride]
    return kept if not pairs or kept[-1] == pairs[-1] else [*kept, pairs[-1]]


def render(chart: Chart, *, last_step: Number) -> str:
    """The chart as an ``<svg>`` element; an empty string where no line has a point."""
    curves = [(line, points(line)) for line in chart.lines]
    curves = [(line, found) for line, found in curves if found]
    if not curves:
        return ""
    band = None if chart.band is None else tuple(points(line) for line in chart.band)
    scale = _Scale(chart, [found for _, found in curves], band, last_step)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(_spoken(chart, curves))}" data-first="{chart.start:g}" '
        f'data-last="{last_step:g}">'
    ]
    parts += scale.axes()
    if band is not None and all(band):
        outline = [*band[1], *reversed(band[0])]
        parts.append(f'<polygon class="band s0" points="{scale.path(outline)}"/>')
    for label, value in chart.references:
        if scale.low <= value <= scale.high:
            parts += scale.reference(label, value)
    for i, (line, found) in enumerate(curves):
        shown = scale.path(found)
        data = " ".join(f"{s:g},{_short(v)}" for s, v in found)
        kind = "dot" if len(found) == 1 else "line"
        element = (
            f'<circle class="mark s{i}" cx="{shown.split(",")[0]}" cy="{shown.split(",")[1]}" r="3"'
            if kind == "dot"
            else f'<polyline class="curve s{i}" points="{shown}"'
        )
        parts.append(f'{element} data-label="{html.escape(line.label)}" data-points="{data}"/>')
        x, y = scale.place(*found[-1])
        parts.append(f'<circle class="mark s{i}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')
    parts.append("</svg>")
    return "".join(parts)


def legend(chart: Chart) -> list[tuple[str, str, str]]:
    """``(class, label, last value)`` of every line that is drawn."""
    rows = []
    drawn = [line for line in chart.lines if points(line)]
    for i, line in enumerate(drawn):
        value = points(line)[-1][1]
        shown = f"{100 * value:.1f} %" if chart.share else number(value)
        label = line.label if len(drawn) > 1 else "last"
        rows.append((f"s{i}", label, shown))
    return rows


class _Scale:
    """From values to places in the drawing."""

    def __init__(self, chart: Chart, curves: Sequence, band: tuple | None, last: Number) -> None:
        self._chart = chart
        values = [v for found in [*curves, *(band or ())] for _, v in found]
        near = [v for _, v in chart.references]
        if chart.log:
            values = [v for v in values if v > 0] or [1.0]
            self.ticks = _log_ticks(min(values), max(values))
        else:
            low = 0.0 if chart.zero or chart.share else min(values)
            high = max(*values, chart.reach)
            spread = (high - low) or abs(high) or 1.0
            # A reference line is shown where it does not squeeze the curve.
            wanted = [v for v in near if low - spread <= v <= high + spread]
            self.ticks = _ticks(min([low, *wanted]), max([high, *wanted]))
        self.low, self.high = self.ticks[0], self.ticks[-1]
        self._first, self._last = chart.start, max(last, 1.0)

    def place(self, step: Number, value: Number) -> tuple[float, float]:
        low, high = self.low, self.high
        if self._chart.log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        along = (step - self._first) / (self._last - self._first)
        x = LEFT + (WIDTH - LEFT - RIGHT) * along
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def path(self, found: Sequence[tuple[float, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*self.place(*point)) for point in found)

    def axes(self) -> list[str]:
        parts = []
        for tick in self.ticks:
            _, y = self.place(0, tick)
            text = f"{100 * tick:.3g} %" if self._chart.share else number(tick)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(f'<text x="{LEFT - 7}" y="{y + 3.5:.1f}" class="y">{text}</text>')
        steps = _ticks(self._first, self._last, want=4)
        for tick in [t for t in steps if self._first <= t <= self._last]:
            x, _ = self.place(tick, self.low)
            text = f"{tick:,.0f}" if tick == int(tick) else number(tick)
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" class="x">{text}</text>')
        return parts

    def reference(self, label: str, value: Number) -> list[str]:
        _, y = self.place(0, value)
        above = y - 4 if y > TOP + 14 else y + 12
        return [
            f'<line class="reference" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text x="{WIDTH - RIGHT}" y="{above:.1f}" class="ref">{html.escape(label)}</text>',
        ]


def _ticks(low: Number, high: Number, want: int = 4) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / want
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 2.5, 5, 10) if f * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def _log_ticks(low: Number, high: Number) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = [10.0**i for i in range(first, max(last, first + 1) + 1)]
    if len(decades) > 3:
        return decades
    fine = [d * f for d in decades for f in (1, 2, 5)]
    inside = [t for t in fine if low <= t <= high]
    below = max((t for t in fine if t <= low), default=fine[0])
    above = min((t for t in fine if t >= high), default=fine[-1])
    return sorted({below, *inside, above}) if below < above else [below, 2 * below]


def number(value: Number) -> str:
    """A value with three significant digits; thousands and millions with a letter."""
    if value < 0:
        return f"−{number(-value)}"
    if value == 0:
        return "0"
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    if value >= 1e4:
        return f"{value / 1e3:.3g}k"
    if value >= 1e3:
        return f"{value:,.0f}"
    if value < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.3g}"


def _short(value: Number) -> str:
    return f"{value:.4g}"


def _spoken(chart: Chart, curves: Sequence) -> str:
    ends = ", ".join(f"{line.label} {_short(found[-1][1])}" for line, found in curves)
    return f"{chart.title}; at the end: {ends}"
