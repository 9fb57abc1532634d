"""What could not be recorded: a mark on the run and a warning, and the user's loop goes on.

Raises only when the recording is strict.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator

from audit.errors import AuditError, RecordingError, UnclearOutput

#: A run keeps this many different marks; a loop that fails at every step would fill its row.
_MOST = 50
#: So many characters of each: torch lists every kernel it knows in some of its errors.
_LONGEST = 1000
#: Packages whose code may lie between the user's and ours.
_SKIPPED_PACKAGES = {"audit", "contextlib", "torch"}


class RecordingWarning(UserWarning):
    """Something could not be recorded. The loop went on; the run is marked."""


class Problems:
    """The marks of one run."""

    def __init__(self, marks: list[str], *, strict: bool) -> None:
        self._marks = marks
        self.strict = strict

    def mark(self, message: str, *, loud: bool = True) -> None:
        """Put a mark on the run, once for each message; `loud` warns as well."""
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…"
        if len(self._marks) >= _MOST or message in self._marks:
            return
        self._marks.append(message)
        if not loud:
            return
        # Under `-W error` a warning raises: into the loop, as its user asked, but never out of a thread of ours.
        ours = threading.current_thread() is not threading.main_thread()
        with contextlib.suppress(RecordingWarning) if ours else contextlib.nullcontext():
            warnings.warn(f"audit: {message}", RecordingWarning, stacklevel=_levels_up())

    def note(self, error: Exception) -> None:
        """Mark the run with an error of recording; raise it only when the recording is strict."""
        with self.guard():
            raise error

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Mark the run with what goes wrong inside; raise it only when the recording is strict."""
        try:
            yield
        except RecordingWarning:
            raise
        except Exception as error:
            # Errors of ours are sentences, and say what to do next.
            text = str(error) if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"
            if self.strict and isinstance(error, RecordingError):
                raise
            if self.strict:
                raise RecordingError(f"Recording failed: {text}") from error
            # Nothing went wrong if only the meaning of an output is not known.
            what = "No prediction was recorded" if isinstance(error, UnclearOutput) else "Recording failed"
            self.mark(f"{what}: {text}")


def _levels_up() -> int:
    """Return how many frames lie between the warning and the line of the user's code that it is about."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _SKIPPED_PACKAGES:
        frame, level = frame.f_back, level + 1
    return level
