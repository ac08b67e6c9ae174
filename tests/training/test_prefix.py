"""Every line says when, where and which process."""

import io
import re
import sys

from contrastive.training.prefix import PrefixedLines, line_prefix, prefixed_output


def test_each_line_has_one_prefix_however_it_is_written():
    stream, count = io.StringIO(), iter(range(9))
    lines = PrefixedLines(stream, lambda: f"{next(count)} | ")
    lines.write("a")
    assert stream.getvalue() == ""  # a line is passed on whole
    lines.write("b\nc\n\nd")
    lines.finish()
    assert stream.getvalue() == "0 | ab\n1 | c\n2 | \n3 | d\n"
    assert not lines.isatty()


def test_the_prefix_is_clock_host_and_process():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \S+ 1/8 \| ", line_prefix(1, 8))


def test_output_and_errors_are_prefixed_inside(capsys):
    with prefixed_output(0, 2):
        print("out")
        print("err", file=sys.stderr)
    print("after")
    captured = capsys.readouterr()
    assert captured.out.endswith(" 0/2 | out\nafter\n")
    assert captured.err.endswith(" 0/2 | err\n")
