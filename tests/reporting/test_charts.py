"""Charts as SVG: what is drawn, where, and with which ticks."""

import math
import xml.etree.ElementTree as ET

import pytest

from contrastive.reporting.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_POINTS,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Line,
    _log_ticks,
    _ticks,
    legend,
    number,
    points,
    render,
)


def places(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    root = ET.fromstring(svg)
    found = [e for e in root.iter() if kind in e.get("class", "").split()]
    return [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in found]


def test_values_land_where_they_belong():
    svg = render(Chart("x", [Line("a", [0, 5, 10], [0.0, 0.5, 1.0])], zero=True), last_step=10)
    ((first, middle, last),) = places(svg, "curve")
    assert first == (LEFT, HEIGHT - BOTTOM)
    assert last == (WIDTH - RIGHT, TOP)
    assert middle == pytest.approx(((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2))


def test_a_logarithmic_axis_gives_equal_factors_equal_distances():
    svg = render(Chart("x", [Line("a", [0, 1, 2], [1.0, 10.0, 100.0])], log=True), last_step=2)
    ((a, b, c),) = places(svg, "curve")
    assert a[1] - b[1] == pytest.approx(b[1] - c[1], abs=0.11)


def test_points_that_are_not_finite_are_left_out_and_long_curves_thinned():
    line = Line("a", [1, 2, 3, 4], [1.0, math.nan, None, 2.0])
    assert points(line) == [(1, 1), (4, 2)]
    long = Line("a", range(10_001), range(10_001))
    kept = points(long)
    assert len(kept) <= MOST_POINTS + 1
    assert kept[-1] == (10_000, 10_000)


def test_nothing_to_draw_is_no_chart_and_one_point_is_a_dot():
    assert render(Chart("x", [Line("a", [], [])]), last_step=1) == ""
    svg = render(Chart("x", [Line("a", [3], [1.0])]), last_step=3)
    ET.fromstring(svg)
    assert "polyline" not in svg
    assert "circle" in svg


def test_a_reference_is_drawn_where_it_does_not_squeeze_the_curve():
    line = Line("loss", [0, 1], [5.0, 1.0])
    near = render(Chart("x", [line], references=[("log B", 5.5)]), last_step=1)
    assert "log B" in near
    assert "log B" not in render(Chart("x", [line], references=[("log B", 500.0)]), last_step=1)


def test_the_band_runs_between_its_lines():
    low, high = Line("", [0, 1], [0.0, 0.0]), Line("", [0, 1], [1.0, 1.0])
    chart = Chart("x", [Line("a", [0, 1], [0.5, 0.5])], band=(low, high))
    (band,) = places(render(chart, last_step=1), "band")
    assert {y for _, y in band} == {TOP, HEIGHT - BOTTOM}


def test_names_are_escaped():
    svg = render(Chart("<b>", [Line('"a" & b', [0, 1], [0.0, 1.0])]), last_step=1)
    ET.fromstring(svg)
    assert "<b>" not in svg


def test_ticks_are_round_and_enclose_the_values():
    assert _ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert _ticks(0.13, 5.7)[0] <= 0.13
    assert _ticks(0.13, 5.7)[-1] >= 5.7
    assert _ticks(3, 3)[0] <= 3 <= _ticks(3, 3)[-1]
    assert _log_ticks(0.5, 2000) == [0.1, 1, 10, 100, 1000, 10_000]
    for low, high in ((1.1, 4.4), (2.0, 2.0), (9.9, 10.1)):
        ticks = _log_ticks(low, high)
        assert ticks == sorted(set(ticks))
        assert ticks[0] <= low * 1.001
        assert ticks[-1] >= high * 0.999


def test_numbers():
    values = (0, 0.0004, 0.123, 5.5, 1234, 56_000, 1_214_000, -0.5)
    assert [number(v) for v in values] == [
        "0", "4e-4", "0.123", "5.5", "1,234", "56k", "1.21M", "−0.5",
    ]  # fmt: skip


def test_the_legend_names_the_last_value():
    chart = Chart("x", [Line("a", [0, 1], [0.5, 0.25]), Line("b", [0], [0.1])], share=True)
    assert legend(chart) == [("s0", "a", "25.0 %"), ("s1", "b", "10.0 %")]
