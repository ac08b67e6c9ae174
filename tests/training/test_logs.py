"""metrics.jsonl, Weights & Biases and the terminal."""

import io
import json
import resource
import signal
import sys
import types

import pytest

from contrastive.errors import UserError
from contrastive.training.logs import MetricsFile, Terminal, WandB


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


class PretendedWandB(types.ModuleType):
    """Takes the place of the package; keeps what it is told."""

    def __init__(self):
        super().__init__("wandb")
        self.errors = types.SimpleNamespace(Error=KeyError)
        self.begun, self.rows = [], []

    def Settings(self, **settings):
        return settings

    def init(self, **options):
        self.begun.append(options)
        if options["project"] == "forbidden":
            raise KeyError("no such project")
        return types.SimpleNamespace(
            url="https://page",
            log=lambda row, step, commit: self.rows.append((step, row)),
            finish=lambda: None,
        )


@pytest.fixture
def pretended(monkeypatch):
    module = PretendedWandB()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_gets_each_step_once_under_one_id_when_a_run_resumes(pretended, tmp_path):
    def open_one():
        return WandB(tmp_path, "p", name="n", config={"seed": 1})

    first = open_one()
    assert first.where() == "https://page"
    first.write(1, {"loss": 3.0})
    first.write(2, {"loss": 2.0, "word": "x"})
    first.write(2, {"evaluation/x": 0.5})
    first.write(3, {"loss": 1.0})  # killed before the next: it is not sent
    second = open_one()  # goes on from step 1
    for step, loss in ((2, 2.0), (3, 1.0), (4, 0.5)):
        second.write(step, {"loss": loss})
        second.write(step, {"evaluation/x": loss / 2})
    second.close()
    assert pretended.rows == [
        (1, {"loss": 3.0}),
        (2, {"loss": 2.0, "evaluation/x": 0.5}),
        (3, {"loss": 1.0, "evaluation/x": 0.5}),
        (4, {"loss": 0.5, "evaluation/x": 0.25}),
    ]
    assert len({begun["id"] for begun in pretended.begun}) == 1
    assert pretended.begun[0]["config"] == {"seed": 1}


def test_what_wandb_refuses_and_a_missing_package_are_one_sentence(
    pretended, tmp_path, monkeypatch
):
    with pytest.raises(UserError, match=r"no such project.*WANDB_MODE=offline"):
        WandB(tmp_path, "forbidden", name="n", config={})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[wandb\]'"):
        WandB(tmp_path, "p", name="n", config={})


@pytest.mark.parametrize("content", ["{", "3", '{"id": "x"}'])
def test_a_damaged_id_of_wandb_is_one_sentence(pretended, tmp_path, content):
    (tmp_path / "wandb.json").write_text(content)
    with pytest.raises(UserError, match=r"wandb\.json is damaged"):
        WandB(tmp_path, "p", name="n", config={})


def test_a_metrics_file_that_has_lost_lines_says_so(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("0123456789\n")
    file = MetricsFile(path)
    assert file.cut(11) == 0
    assert file.cut(14) == 3
    assert file.cut(5) == 0
    file.close()
    assert path.read_text() == "01234"
