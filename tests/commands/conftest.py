"""Programs that several of these tests compile are compiled once, for both workers."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

_LEAST = 0.2  # seconds of compilation that are worth a file


@pytest.fixture(scope="package", autouse=True)
def _programs_are_compiled_once(tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "programs"
    options = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": _LEAST,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
