"""Data sets that experiments need: made where they are missing."""

import pathlib
import subprocess
import sys

from contrastive.errors import DataError

# folder under data/: the module that makes it, and the file that is there when it is whole
_SETS = {
    "wordnet": ("wordnet", "LICENSE"),
    "debian": ("debian_descriptions", "pairs.jsonl"),
    "minilm": ("minilm", "model.safetensors"),
}


def ready(name: str, root: pathlib.Path = pathlib.Path("data")) -> pathlib.Path:
    """The folder of a data set, fetched if it is not there.

    Raises:
      DataError: It cannot be fetched.
    """
    module, file = _SETS[name]
    folder = root / name
    if not (folder / file).exists():
        print(f"fetching {name} ...", flush=True)
        command = [sys.executable, "-m", f"experiments.data.{module}", f"--output={folder}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataError(
                f"{name} cannot be fetched: {(done.stderr or done.stdout).strip()}; "
                f"`python -m experiments.data.{module} --output={folder}` tries again."
            )
    return folder
