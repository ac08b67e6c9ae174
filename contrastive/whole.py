"""Files that are there whole or not at all."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives a path to write to, which becomes ``path`` when the block ends without an error.

    A process that is killed in between leaves what was at ``path`` as it was. After an error the
    unfinished file is removed.

    Args:
      path: The file to make or to replace; its folder must exist.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
