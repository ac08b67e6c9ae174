"""metrics.jsonl and the terminal."""

import io
import json
import resource
import signal

import pytest

from contrastive.errors import UserError
from contrastive.training.logs import MetricsFile, Terminal


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_after_the_checkpoint_are_cut_when_a_run_resumes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(1, {"loss": 2.0})
    offset = file.offset()
    file.write(2, {"loss": 1.0})
    file.close()
    with open(path, "a") as handle:
        handle.write('{"step": 3, "lo')  # the process was killed while writing
    file = MetricsFile(path)
    file.cut(offset)
    file.write(2, {"loss": 1.5})
    file.close()
    assert read(path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]


def test_numbers_that_json_lacks_become_null(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(1, {"loss": float("inf")})
    file.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": None}]


def test_a_full_disk_is_one_sentence(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        with pytest.raises(UserError, match="cannot write"):
            file.write(1, {"note": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        file.close()


def test_without_a_terminal_there_are_at_most_twenty_plain_lines():
    stream = io.StringIO()
    terminal = Terminal(1000, stream=stream)
    for step in range(10, 1001, 10):
        terminal.step(step, {"loss": 1.0, "scale": 14.3, "examples_per_second": 10.0})
    terminal.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[-1] == "step 1000/1000  loss 1.000  scale 14.3  10 pairs/s"
