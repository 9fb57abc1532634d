"""A store call fails with an errno: the process says so in a sentence, and nothing that was committed is lost.

Most write a run; the others merge, tag, clean or remove one. Calls that read, list and lock fail as well as those that write.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watch_calls
from bench.campaign.stores import BATCH, find_loss, make_fresh, visits, write_run
from bench.campaign.trial import Trial
from bench.campaign.upkeep import REMOVE, UPKEEP, keep_up

GOAL = 5_000
COUNTS = "errors injected into store calls"
_ERRNOS = (
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EMFILE),
    *(errno.EINTR, errno.ESTALE, errno.ENOMEM, errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG, errno.ETIMEDOUT),
    *(errno.EBUSY, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENFILE),
)
_COMMITS = 2
_CALLS = 90
_UPKEEP_CALLS = 30


class Fault:
    """Fails the call of a number, or all from then on."""

    def __init__(self, code: int, at: int, lasts: bool) -> None:
        self.code = code
        self.lasts = lasts
        self.met = ""
        self._left = at

    def __call__(self, name: str, paths: tuple[str, ...]) -> None:
        self._left -= 1
        if self._left == -1 or (self.lasts and self._left < 0):
            self.met = self.met or name
            raise OSError(self.code, os.strerror(self.code), paths[-1])

    def end(self) -> None:
        """Let every later call succeed: the disk is well again."""
        self._left = 10**9

    def __str__(self) -> str:
        return f"{errno.errorcode[self.code]} at {self.met}{' and from then on' if self.lasts else ''}"


def run(trial: Trial) -> None:
    template = make_fresh(trial.folder / "template")
    first = write_run(template, commits=2)
    place = trial.folder / "s"
    while trial.more():
        is_new = trial.chance.random() < 0.5
        make_fresh(place, None if is_new else template)
        expected = {} if is_new else {first: 2 * BATCH}
        what = trial.chance.choice(list(UPKEEP)) if not is_new and trial.chance.random() < 0.5 else "write"
        at = trial.chance.randrange(_CALLS if what == "write" else _UPKEEP_CALLS)
        fault = Fault(trial.chance.choice(_ERRNOS), at, trial.chance.random() < 0.3)
        problem = None
        with watch_calls(str(place), fault, reads=True):
            try:
                if what == "write":
                    _write(place, expected, fault)
                else:
                    keep_up(what, place, first)
                trial.counts["without effect"] += bool(fault.met)
            except AuditError as error:
                trial.counts["reported in a sentence"] += 1
                problem = _find_unclear(error)
            except Exception as error:  # anything else is a fault: that is what is looked for
                problem = f"{type(error).__name__}: {error}"
        if what == REMOVE:
            expected.pop(first)
        if problem is None and os.path.exists(place / "audit.json"):
            problem = find_loss(place, expected)
        if problem is not None:
            trial.fail(f"try {trial.tried}, {what}, {fault}: {problem}")
        trial.tried += bool(fault.met)
        trial.counts[f"in {what}"] += bool(fault.met)
        trial.counts["not reached, not counted"] += not fault.met


def _write(place: Path, expected: dict[str, int], fault: Fault) -> None:
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    expected[run_id] = 0
    try:
        for number in range(_COMMITS):
            writer.append(visits(run_id, number * BATCH))
            writer.flush()
            expected[run_id] += BATCH
        writer.finish("complete")
    except BaseException:
        fault.end()
        writer.abandon()
        raise


def _find_unclear(error: AuditError) -> str | None:
    """Return what is wrong with an error's text; None if it is a sentence."""
    return None if error.message.rstrip().endswith((".", "?")) else f"not a sentence: {error.message!r}"
