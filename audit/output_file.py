"""Files that a command writes for its user: each appears only when it is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

from audit.errors import UsageError

#: How a text begins that a spreadsheet would compute.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@contextlib.contextmanager
def explain_write_errors(place: str | os.PathLike[str], hint: str = "Choose another place.") -> Iterator[None]:
    """Say in a sentence why a file or folder that the user named could not be written; UsageError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{os.fspath(place)} could not be written: {reason}.", hint=hint) from error


@contextlib.contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a temporary path next to the target, and rename it at the end. Write directly to a device or a pipe."""
    # Write to the target of a link, so that the link is kept.
    target = os.path.realpath(path)
    plain = not os.path.exists(target) or os.path.isfile(target)
    folder, name = os.path.split(target)
    part = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.part") if plain else target
    try:
        with explain_write_errors(path, "Choose another file with -o."):
            yield part
            if plain:
                os.replace(part, target)
    finally:
        if plain and os.path.exists(part):
            os.unlink(part)


def write_text(path: str | os.PathLike[str], text: str) -> int:
    """Write a text file as UTF-8, and return its size in bytes; what UTF-8 cannot hold is written as an escape."""
    data = text.encode("utf-8", "backslashreplace")
    with replace_file(path) as part, open(part, "wb") as out:
        out.write(data)
    return len(data)
