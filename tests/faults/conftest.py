"""Real processes that train a tiny model, and how their runs are compared."""

import collections
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

CHILD = pathlib.Path(__file__).with_name("child.py")
TIMING = ("examples_per_second", "input_wait_share", "host_share")
# No test here is about speed: these only end what would wait for ever.
PATIENCE = 900


def pytest_terminal_summary(terminalreporter):
    """How many faults were tried, and how many of them in tests that passed."""
    tried, survived = collections.Counter(), collections.Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(report, "user_properties", ()):
                if name == "fault":
                    kind, count = value
                    tried[kind] += count
                    survived[kind] += count * report.passed
    if tried:
        listed = ", ".join(f"{survived[kind]}/{tried[kind]} {kind}" for kind in sorted(tried))
        terminalreporter.write_line(
            f"Faults: {tried.total()} tried, {survived.total()} survived ({listed}).", bold=True
        )


@pytest.fixture
def tried(record_property):
    """``tried(*kinds, times=1)``: the test is about to make these faults happen."""

    def record(*kinds, times=1):
        for kind in kinds:
            record_property("fault", [kind, times])

    return record


class Run:
    """A run in a workdir: starts processes of it and reads what they leave."""

    def __init__(self, folder, config, cache):
        self.workdir = folder / "run"
        self.ids_folder = folder / "ids"
        self.ids_folder.mkdir()
        self.recipe = folder / "recipe.py"
        self.cache = cache
        self.recipe.write_text(
            "from ml_collections import ConfigDict\ndef get_config():\n"
            f"    return ConfigDict({config.to_dict()!r})\n"
        )

    def start(self, *options, faults=(), environment=(), devices=1, folder=None):
        plan = {"ids": str(self.ids_folder), "faults": list(faults)}
        command = [sys.executable, str(CHILD), "train", f"--config={self.recipe}"]
        return subprocess.Popen(
            [*command, f"--workdir={self.workdir}", *options],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": str(CHILD.parents[2]),  # this checkout, whatever is installed
                "FAULTS": json.dumps(plan),
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                "JAX_PLATFORMS": "cpu",
                # Most of a start is compilation, of XLA programs and of Python files.
                "JAX_COMPILATION_CACHE_DIR": str(self.cache / "xla"),
                "PYTHONPYCACHEPREFIX": str(self.cache / "python"),
                "PYTHONDONTWRITEBYTECODE": "",
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
            | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def train(self, *options, faults=(), status=0, devices=1):
        """One process to its end; returns what it said."""
        return finish([self.start(*options, faults=faults, devices=devices)], [status])[0]

    def start_several(self, count, *options, faults=(), devices=1, only=None):
        port = free_port()
        return [
            self.start(
                *options,
                faults=faults,
                devices=devices,
                environment={
                    "CONTRASTIVE_COORDINATOR": f"localhost:{port}",
                    "CONTRASTIVE_PROCESSES": str(count),
                    "CONTRASTIVE_PROCESS": str(index),
                }.items(),
            )
            for index in (range(count) if only is None else only)
        ]

    def lines(self):
        """Lines of metrics.jsonl with a loss, without what depends on the clock."""
        text = (self.workdir / "metrics.jsonl").read_text()
        return [
            {k: v for k, v in entry.items() if k not in TIMING}
            for entry in map(json.loads, text.splitlines())
            if "loss" in entry
        ]

    def ids(self):
        """Example ids of each step, of all processes; the newest delivery counts."""
        steps = collections.defaultdict(dict)
        for file in sorted(self.ids_folder.iterdir()):
            for line in file.read_text().splitlines():
                step, ids = json.loads(line)
                steps[step][file.name] = ids
        return {
            step: [i for name in sorted(parts) for i in parts[name]]
            for step, parts in steps.items()
        }

    def evaluation(self):
        return json.loads((self.workdir / "evaluation.json").read_text())

    def steps_saved(self):
        names = [p.name for p in (self.workdir / "checkpoints").iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())

    def wait_for(self, condition):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.05)
        raise AssertionError("waited too long")


def assert_unharmed(run, whole):
    assert run.lines() == whole.lines()  # no gap, no double line, every number
    assert run.ids() == whole.ids()  # no sample lost or repeated
    assert run.evaluation() == whole.evaluation()


def next_child(supervisor):
    while supervisor.poll() is None:
        if found := children(supervisor.pid):
            return found[0]
        time.sleep(0.01)
    raise AssertionError(supervisor.communicate()[0])


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def finish(processes, statuses, timeout=PATIENCE):
    """What the processes said, after they have ended with these statuses."""
    said = []
    try:
        said = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                said.append(process.communicate()[0])
    found = [process.returncode for process in processes]
    assert found == list(statuses), "\n\n".join(text[-3000:] for text in said)
    return said


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def new_run(tmp_path_factory):
    cache = tmp_path_factory.mktemp("compiled")

    def make(config):
        return Run(tmp_path_factory.mktemp("run"), config, cache)

    return make


@pytest.fixture(scope="session")
def tiny_faulty(tiny_recipe):
    """The tiny recipe, with a step so small that start-up dominates."""
    config = tiny_recipe.copy_and_resolve_references()
    config.total_steps = 12
    config.batch_size = 8
    config.average_decay = 0.9
    config.data.threads = 0
    config.model.embedding_dim = 8
    config.model.image.widths = (4, 8)
    config.model.text.width = 8
    config.checkpoint.every = 3
    return config


@pytest.fixture(scope="session")
def whole(new_run, tiny_faulty):
    """The run that nothing happens to."""
    run = new_run(tiny_faulty)
    run.train()
    return run


@pytest.fixture
def once(tmp_path):
    def fault(kind, at, **more):
        return {"kind": kind, "at": at, "once": str(tmp_path / f"{kind}-{at}"), **more}

    return fault
