"""A real SLURM for the tests of this folder."""

import os
import pathlib
import tempfile

import pytest

from .cluster import cluster, missing


@pytest.fixture(scope="session")
def slurm():
    """The environment in which SLURM's commands speak to a cluster of two nodes."""
    if absent := missing():
        reason = f"no SLURM on this machine ({', '.join(absent)} missing): apt install slurm-wlm"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("the test's SLURM gives its daemons another /etc/hosts, which needs root")
    with (
        tempfile.TemporaryDirectory(prefix="slurm", dir="/tmp") as folder,
        cluster(pathlib.Path(folder) / "c") as environment,
    ):
        # A job inherits this environment: two simulated devices a process. No compilation cache:
        # seen with one, process 0 began 30 s before process 1, which is as long as Gloo waits.
        yield environment | {
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "JAX_PLATFORMS": "cpu",
        }
