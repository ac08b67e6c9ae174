"""How much memory there is for another trial."""

import pathlib

import psutil

_GROUP = pathlib.Path("/sys/fs/cgroup")


def available(group: pathlib.Path = _GROUP) -> int:
    """Bytes that can still be taken: of the machine, and of the container's limit if there is
    one."""
    free = psutil.virtual_memory().available
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    if limit == "max":
        return free
    return min(free, int(limit) - used + int(cached.get("inactive_file", 0)))


def resident(pid: int) -> int:
    """Bytes that a process and its children hold now; 0 of one that has ended."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in family)
    except psutil.Error:
        return 0
