"""How things are named: runs, references to runs, and the seed of one visit.

Pure arithmetic on strings and integers, so that it can be tested by hand.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from audit.errors import NotFound, UsageError

#: The address of the project's documentation: the package's page links there, and records for other tools name it.
#: `.example` is a reserved ending, so nothing answers yet. Change it here, and in packaging/conda-forge/meta.yaml.
PROJECT_ADDRESS = "https://audit-lineage.example"

#: `latest`, or the Nth complete run before it; the SQL macro `run_of` uses it too.
LATEST = "latest(~[0-9]{1,9})?"
_LATEST = re.compile(LATEST)
_NAME = re.compile(r"^[^\x00-\x1f\ud800-\udfff/\\]{1,200}$")


def new_run_id(now: datetime) -> str:
    """Return a run id that sorts roughly by time and never collides in practice."""
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def check_run_name(name: str | None) -> str | None:
    """Return a name that can be typed again later, or raise UsageError."""
    if name is None:
        return None
    if not _NAME.match(name) or name != name.strip():
        raise UsageError(
            f"{name!r} cannot be a run's name.",
            hint="Use up to 200 printable characters without slashes, not beginning or ending in a space.",
        )
    if _LATEST.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a run's name: it always means the newest complete run.", hint="Choose another name."
        )
    return name


class NamedRun(Protocol):
    """What `resolve_run` needs to know of a run."""

    @property
    def run_id(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def status(self) -> str: ...


def resolve_run(reference: str | None, runs: Sequence[NamedRun]) -> str:
    """Return the run id that `reference` means among `runs`, which are in the order they were begun.

    An id, a unique prefix of one, a name (the newest run of that name), `latest` or `latest~N`
    (the newest complete run, or the Nth before it). None means `latest`. The SQL macro `run_of` follows the same rule, and
    a test compares the two.
    """
    reference = reference or "latest"
    if not runs:
        raise NotFound("The store holds no run.", hint="Record one with: audit run --dataset DIR")
    if match := _LATEST.fullmatch(reference):
        complete = [run for run in runs if run.status == "complete"]
        back = int((match.group(1) or "~0")[1:])
        if back < len(complete):
            return complete[-1 - back].run_id
        if not complete:
            raise NotFound(
                f"The store holds no complete run, only {_format_list(runs)}.",
                hint="Name one of them, or finish it with: audit run --resume RUN",
            )
        raise NotFound(f"There is no {reference}: the store holds {len(complete)} complete run(s).")
    exact = [run for run in runs if reference in (run.run_id, run.name)]
    if exact:
        return exact[-1].run_id
    by_prefix = [run for run in runs if run.run_id.startswith(reference)]
    if len(by_prefix) == 1:
        return by_prefix[0].run_id
    if by_prefix:
        raise UsageError(
            f"The ids of several runs begin with {reference!r}: {_format_list(by_prefix)}.", hint="Give more of the id."
        )
    names = {name for run in runs for name in (run.name, run.run_id) if name}
    near = difflib.get_close_matches(reference, names, n=3)
    hint = f"Did you mean {', '.join(near)}?" if near else f"It holds {_format_list(runs)}."
    raise NotFound(f"There is no run {reference!r} in the store.", hint=hint)


def _format_list(runs: Sequence[NamedRun], most: int = 5) -> str:
    shown = [f"{run.run_id} ({run.name})" if run.name else run.run_id for run in runs[-most:]]
    more = len(runs) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def visit_seed(seed: int, epoch: int, index: int) -> int:
    """Return the 63-bit seed of one visit: the same for any number of workers and any batch size."""
    text = f"audit:{seed}:{epoch}:{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
