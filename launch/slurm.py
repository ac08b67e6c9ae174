"""What to ask SLURM for; change what your cluster calls otherwise.

    contrastive launch slurm --on=launch/slurm.py:h100 --on.nodes=8 -- train --config=… --workdir=…

``h100`` are nodes of eight H100, one process a node; ``cpu`` is one node without GPUs.
"""

from ml_collections import ConfigDict


def get_machine(kind: str = "h100") -> ConfigDict:
    """Keys that are not named here have the default of contrastive.launching.slurm.SlurmMachine."""
    config = ConfigDict()
    if kind == "h100":
        config.nodes = 8
        config.gpus = 8
        config.chip = "h100"  # what the planner plans for
        config.memory = "0"  # all of a node
        config.options = ("--exclusive",)
        config.setup = (
            # JAX gives a program 75 % of the memory, which the planner counts with.
            "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.75",
            "export NCCL_DEBUG=WARN",
            # NCCL ends a process whose collective takes longer; the run's own watchdog, which names
            # the host that hangs, is less patient (config.train.patience_seconds).
            'export XLA_FLAGS="--xla_gpu_nccl_termination_timeout_seconds=2400 ${XLA_FLAGS:-}"',
        )
    elif kind == "cpu":
        config.setup = ("export JAX_PLATFORMS=cpu",)
    else:
        raise ValueError(f"launch/slurm.py:{kind} is not known; h100 and cpu are.")
    return config
