"""A sweep of tiny runs, as a file."""

import pytest


@pytest.fixture
def sweep_file(tiny, tmp_path):
    """Writes the tiny recipe and a sweep of it; more of the sweep's fields as arguments."""
    tiny.total_steps, tiny.checkpoint.every = 4, 2
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        f"from ml_collections import ConfigDict\ndef get_config():\n"
        f"    return ConfigDict({tiny.to_dict()!r})\n"
    )

    def write(settings, **fields):
        file = tmp_path / "sweep.py"
        more = "".join(f", {name}={value!r}" for name, value in fields.items())
        file.write_text(
            "from contrastive.sweeps import *\ndef get_sweep():\n"
            f"    return Sweep(name='tiny', base={str(recipe)!r}, settings={settings}{more})\n"
        )
        return file

    return write
