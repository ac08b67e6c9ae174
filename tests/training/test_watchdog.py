"""The watchdog, with seconds instead of minutes, and processes that exist in memory only."""

import time

import pytest

from contrastive.processes import LOST, Processes
from contrastive.training.watchdog import Watchdog


class Ended:
    """Takes the place of the end of the process."""

    def __init__(self):
        self.said = []

    def __call__(self, message, status):
        self.said.append((message, status))

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while not self.said and time.monotonic() < end:
            time.sleep(0.01)
        return self.said


class Pair(Processes):
    """Process 0 of two; the test says what process 1 reports."""

    def __init__(self):
        super().__init__(0, 2, lost_after=0.3)
        self.other, self.failed = {"beat": 0, "step": 7, "host": "b", "pid": 9}, None

    def report(self, beat, step):
        self.mine = {"beat": beat, "step": step, "host": "a", "pid": 8}

    def reports(self):
        return {0: self.mine, 1: self.other}

    def fail(self, message, status):
        pass

    def failure(self):
        return self.failed


@pytest.fixture
def ended():
    return Ended()


def test_a_step_that_does_not_end_ends_the_run_with_its_number(ended):
    with Watchdog(Processes(), 0.2, None, end=ended) as watchdog:
        watchdog.finished(4)
        ((message, status),) = ended.wait(60)
    assert "nothing was finished for 0.2 s after step 4 (config.train.watchdog_seconds" in message
    assert status == LOST


def test_steps_pauses_and_the_first_compilation_have_patience(ended):
    with Watchdog(Processes(), 2.0, 60.0, end=ended) as watchdog:
        watchdog.begins("compiling")
        time.sleep(2.5)
        for step in range(1, 4):
            watchdog.finished(step)
            time.sleep(0.1)
        with watchdog.paused("evaluating"):
            time.sleep(2.5)
        watchdog.finished(6)
    time.sleep(2.5)  # closed: the run is over
    assert not ended.said


def test_a_hang_before_the_first_step_says_what_was_being_done(ended):
    with Watchdog(Processes(), None, 0.2, end=ended) as watchdog:
        watchdog.begins("reading the data")
        ((message, status),) = ended.wait(60)
    assert "finished for 0.2 s before the first step while reading the data (config" in message
    assert "config.train.patience_seconds = 0.2" in message
    assert status == LOST


def test_a_hang_in_an_evaluation_ends_the_run_and_its_parts_are_signs_of_life(ended):
    with Watchdog(Processes(), None, 2.0, end=ended) as watchdog:
        watchdog.finished(3)
        with watchdog.paused("evaluating"):
            for _ in range(6):
                time.sleep(0.5)
                watchdog.alive()
            assert not ended.said
            ((message, _),) = ended.wait(60)
    assert "after step 3 while evaluating" in message


def test_without_a_limit_and_alone_nothing_runs(ended):
    with Watchdog(Processes(), None, None, end=ended) as watchdog:
        assert not watchdog._thread.is_alive()


def test_a_silent_process_is_named_with_the_last_steps(ended):
    pair = Pair()
    with Watchdog(pair, None, None, end=ended) as watchdog:
        watchdog.finished(8)
        ((message, status),) = ended.wait(60)
    assert message.startswith("process 1 on b (pid 9) has not answered for 0.3 s.")
    assert "process 0 on a (pid 8): 8, process 1 on b (pid 9): 7" in message
    assert status == LOST


def test_the_failure_of_another_process_is_repeated(ended):
    pair = Pair()
    pair.failed = ("process 1 on b: the disk is full.", 2)
    with Watchdog(pair, None, None, end=ended):
        assert ended.wait(60) == [("process 1 on b: the disk is full.", 2)]
