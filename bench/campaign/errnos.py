"""A store call fails with an errno: the writer says so in a sentence, and nothing that was committed is lost."""

from __future__ import annotations

import errno
import os

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watched
from bench.campaign.stores import BATCH, fresh, lost, visits
from bench.campaign.trial import Trial

GOAL = 5_000
COUNTS = "errors injected into store calls"
_ERRNOS = (
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EMFILE),
    *(
        errno.EINTR,
        errno.ESTALE,
        errno.ENOMEM,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EFBIG,
        errno.ETIMEDOUT,
        errno.EBUSY,
    ),
)
_COMMITS = 4


def run(trial: Trial) -> None:
    place = fresh(trial.folder / "s")
    while trial.more():
        if trial.tried % 10 == 0:
            fresh(place)
        code, lasts = trial.chance.choice(_ERRNOS), trial.chance.random() < 0.3
        left = trial.chance.randrange(110)
        met = False

        def fail(name: str, paths: tuple[str, ...], code: int = code, lasts: bool = lasts) -> None:
            nonlocal left, met
            left -= 1
            if left == -1 or (lasts and left < 0):
                met = True
                raise OSError(code, os.strerror(code), paths[-1])

        run_id, samples, problem = None, 0, None
        with watched(str(place), fail):
            try:
                writer = RunWriter.create(str(place))
                run_id = writer.run.run_id
                for number in range(_COMMITS):
                    writer.append(visits(run_id, number * BATCH))
                    writer.flush()
                    samples += BATCH
                writer.finish("complete")
            except AuditError:
                trial.counts["reported in a sentence"] += 1
                left = 10**6  # the disk is well again
                if run_id is not None:
                    writer.abandon()
            except Exception as error:  # anything else is a fault: that is what is looked for
                problem = f"{type(error).__name__}: {error}"
                left = 10**6
                if run_id is not None:
                    writer.abandon()
        if problem is None and os.path.exists(place / "audit.json"):
            problem = lost(place, run_id, samples)
        if problem is not None:
            trial.fail(f"try {trial.tried}, {errno.errorcode[code]}{' from then on' if lasts else ''}: {problem}")
        trial.tried += met
        trial.counts["without effect"] += not met
