"""Where the time of a step goes in a trace: waiting for input, the host's own work, idle devices.

    contrastive train --config=configs/emoji.py:clip --workdir=RUN --config.stop_at=60 \\
        --config.train.profile=30:50 --config.log.every=1
    python experiments/benchmarks/host_time.py RUN

Reads the newest trace of the run. The devices are idle between the end of one step's program and
the beginning of the next one's; on CPU these are the executions that last longest.
"""

import argparse
import bisect
import itertools
import pathlib
import statistics
from typing import Any

from jax.profiler import ProfileData

_EXECUTIONS = "tf_XLAExecute"  # the threads of the CPU client that run programs
_BEGIN = "ThunkExecutor::Execute"
_EXECUTION = "ThunkExecutor::Execute (wait for completion)"

Span = tuple[float, float]  # begin and end in milliseconds


def spans(data: Any, name: str, threads: str = "") -> list[Span]:
    """Events of this name, in order."""
    found = [
        (event.start_ns / 1e6, (event.start_ns + event.duration_ns) / 1e6)
        for plane in data.planes
        for line in plane.lines
        if line.name.startswith(threads)
        for event in line.events
        if event.name == name
    ]
    return sorted(found)


def steps_on_device(data: Any) -> list[Span]:
    """Executions of the train step: those of at least half the length of the longest.

    The thread that starts a program computes its first operations itself (``_BEGIN``) and then
    waits for the threads that compute the others (``_EXECUTION``): an execution is both.
    """
    waits = spans(data, _EXECUTION, _EXECUTIONS)
    begins = [begin for begin, _ in spans(data, _BEGIN, _EXECUTIONS)]
    longest = max(end - begin for begin, end in waits)
    return [
        (begins[max(bisect.bisect(begins, begin) - 1, 0)], end)
        for begin, end in waits
        if end - begin > longest / 2
    ]


def total(found: list[Span], window: Span) -> float:
    """Milliseconds inside the window."""
    return sum(max(min(e, window[1]) - max(b, window[0]), 0.0) for b, e in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=pathlib.Path)
    folder = parser.parse_args().run / "profile"
    trace = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    data = ProfileData.from_file(str(trace))
    steps = steps_on_device(data)
    window = steps[0][1], steps[-1][1]  # from the end of the first step to the end of the last
    length = window[1] - window[0]
    idle = [after - before for (_, before), (after, _) in itertools.pairwise(steps)]
    shares = {
        "waiting for input": total(spans(data, "wait for input"), window),
        "waiting for devices": total(spans(data, "wait for devices"), window),
        "devices idle between steps": sum(max(gap, 0.0) for gap in idle),
    }
    shares["the host's own work"] = length - sum(list(shares.values())[:2])
    print(f"{len(steps) - 1} steps of {length / (len(steps) - 1):.1f} ms", end=" ")
    print(f"(median gap between two {statistics.median(idle):.2f} ms)")
    for name, value in shares.items():
        print(f"{name:>28} {100 * value / length:6.2f} %")


if __name__ == "__main__":
    main()
