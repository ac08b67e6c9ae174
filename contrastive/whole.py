"""Files that are there whole or not at all, and folders that are new."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from contrastive.errors import UserError


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


def new_folder(folder: pathlib.Path) -> None:
    """Makes a folder; one that is there may stay if it is empty.

    Raises:
      UserError: There is something in it or in its place, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            return
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(
            f"the folder {folder} cannot be made ({error.strerror}); choose another --output."
        ) from error
    raise UserError(f"{folder} exists already and is no empty folder; choose another --output.")
