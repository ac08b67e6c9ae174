"""Eight simulated devices; in the library, promotion of dtypes or ranks is an error."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

from jaxtyping import install_import_hook

install_import_hook("contrastive", "beartype.beartype")

import jax  # noqa: E402  after the devices and the hook are set

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    """``--rewrite-golden`` accepts what the golden tests now see."""
    parser.addoption("--rewrite-golden", action="store_true")
