"""Compilers write their notes straight to the process's error stream."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Nothing that native code writes to stderr is shown, unless CONTRASTIVE_DEBUG is set."""
    if os.environ.get("CONTRASTIVE_DEBUG"):
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
