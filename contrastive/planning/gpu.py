"""GPU clusters, described to the CUDA plugin in the words of XLA's target configuration."""

import importlib.util
import os
import pathlib
from typing import Any

from jax.experimental import topologies

from contrastive.errors import ConfigError
from contrastive.planning.quiet import silenced

# What XLA's GpuTargetConfigProto asks of a Hopper GPU (compute capability 9.0, SXM form).
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: {memory}
  shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 }}
device_description_str: "{name}"
"""
_GPUS = {
    "h100": {"bandwidth": 3_352_320_000_000, "memory": 85_520_809_984, "name": "NVIDIA H100"},
    "h200": {"bandwidth": 4_800_000_000_000, "memory": 150_754_820_096, "name": "NVIDIA H200"},
}
_NEEDED = ("nvvm/libdevice/libdevice.10.bc", "bin/ptxas")  # without them the process would end


def devices(name: str, chip: str, nodes: int, gpus: int) -> list[Any]:
    """The GPUs of ``nodes`` machines.

    Raises:
      ConfigError: The CUDA plugin, CUDA's device library or its assembler is not installed, or the
        plugin does not take the description.
    """
    if importlib.util.find_spec("jax_cuda13_plugin") is None or cuda_folder() is None:
        raise ConfigError(
            f"--topology={name}: the compiler for GPUs (JAX's CUDA plugin, NVIDIA's libdevice and "
            "ptxas) is not installed; make env-plan adds it."
        )
    try:
        with silenced():
            found = topologies.get_topology_desc(
                platform="cuda",
                topology_name="",
                target_config=_HOPPER.format(**_GPUS[chip]),
                topology=f"1x{nodes}x{gpus}",
            )
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"--topology={name}: the CUDA plugin does not take the description ({lines[0][:160]})."
        ) from error
    return list(found.devices)


def compiler_options() -> dict[str, Any]:
    """Without a GPU there is nothing to measure kernels on, to choose among them."""
    return {
        "xla_gpu_autotune_level": 0,
        "xla_gpu_enable_triton_gemm": False,
        "xla_gpu_cuda_data_dir": str(cuda_folder()),
    }


def cuda_folder() -> pathlib.Path | None:
    """Where CUDA's device library and assembler lie: in a folder that the environment names, in
    NVIDIA's Python packages, or in an installed toolkit; None: nowhere."""
    named = [os.environ[key] for key in ("CUDA_ROOT", "CUDA_HOME") if os.environ.get(key)]
    spec = importlib.util.find_spec("nvidia")
    packages = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [*named, *(f"{package}/cu13" for package in packages), "/usr/local/cuda", "/opt/cuda"]
    folders = map(pathlib.Path, found)
    return next((f for f in folders if all((f / part).is_file() for part in _NEEDED)), None)
