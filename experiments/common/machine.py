"""When, with what and where something was measured."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
from typing import Any

import psutil

from contrastive.reporting.page import PACKAGES


def made() -> dict[str, Any]:
    """Date, versions and machine, as plain text under plain names."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{_processor()}, {_cores()} cores, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
