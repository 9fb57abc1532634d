"""A power cut by the letter of POSIX: what was not flushed may be there, partly there, or not.

The calls of the processes that write, resume, merge, tag, clean and remove runs are noted once. For each try the disk is computed
as a cut after some of them may leave it: a file that was not flushed holds any beginning of itself, or zeros; each name in a
folder that was not flushed since is the old or the new one, independently of the others. What was committed before the cut
must be there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from audit.store.marker import MARKER
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watch_calls
from bench.campaign.stores import BATCH, find_loss, make_fresh, visits
from bench.campaign.trial import Trial
from bench.campaign.upkeep import REMOVE, keep_up

GOAL = 10_000
COUNTS = "simulated power cuts"
_ROOT = 0

Event = tuple[str, tuple[str, ...], bytes]


class Disk:
    """Files and folders by number; names and contents as they are, and as they were when they were last flushed."""

    def __init__(self, root: str) -> None:
        self._path = root
        self._next = _ROOT
        self._now: dict[int, dict[str, int]] = {_ROOT: {}}
        self._flushed: dict[int, dict[str, int]] = {_ROOT: {}}
        self._data: dict[int, bytes] = {}
        self._safe: dict[int, bytes] = {}

    def apply(self, event: Event) -> None:
        """Do what a call did."""
        name, paths, data = event
        if name == "fsync":
            self._flush(self._number(paths[0]))
            return
        folder, base = self._place(paths[-1])
        if name == "create":
            self._data[self._new(folder, base)] = b""
        elif name == "mkdir":
            made = self._new(folder, base)
            self._now[made], self._flushed[made] = {}, {}
        elif name == "write":
            self._data[folder[base]] += data
        elif name in ("unlink", "rmdir"):
            folder.pop(base, None)
        else:  # link, replace, rename
            source, old = self._place(paths[0])
            folder[base] = source[old]
            if name != "link":
                del source[old]

    def _new(self, folder: dict[str, int], base: str) -> int:
        self._next += 1
        folder[base] = self._next
        return self._next

    def _number(self, path: str) -> int:
        number = _ROOT
        for name in path[len(self._path) :].strip("/").split("/"):
            number = self._now[number][name] if name else number
        return number

    def _place(self, path: str) -> tuple[dict[str, int], str]:
        above, _, base = path.rpartition("/")
        return self._now[self._number(above)], base

    def _flush(self, number: int) -> None:
        if number in self._now:
            self._flushed[number] = dict(self._now[number])
        else:
            self._safe[number] = self._data[number]

    def cut(self, target: Path, chance: random.Random, number: int = _ROOT) -> None:
        """Write the files that the disk may hold after a cut."""
        now, flushed = self._now[number], self._flushed[number]
        for name in sorted({*now, *flushed}):
            held = now.get(name)
            if held != flushed.get(name) and chance.random() < 0.5:
                held = flushed.get(name)
            if held in self._now:
                (target / name).mkdir()
                self.cut(target / name, chance, held)
            elif held is not None:
                (target / name).write_bytes(self._content(held, chance))

    def _content(self, number: int, chance: random.Random) -> bytes:
        data, safe = self._data[number], self._safe.get(number)
        if safe == data:
            return data
        kind = chance.randrange(4)
        cut = chance.randrange(len(data) + 1)
        return (data, data[:cut], bytes(len(data)), data[:cut] + bytes(len(data) - cut))[kind]


@dataclass(slots=True)
class Life:
    """The calls that a store saw, and what had been committed after how many of them."""

    events: list[Event] = field(default_factory=list)
    #: After so many calls, the samples of each run that must be there.
    committed: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def note(self, **samples: int) -> None:
        """From now on these must be there."""
        latest = self.committed[-1][1] if self.committed else {}
        self.committed.append((len(self.events), latest | samples))

    def drop(self, run_id: str) -> None:
        """From now on this run may be there or not."""
        latest = self.committed[-1][1]
        self.committed.append((len(self.events), {run: count for run, count in latest.items() if run != run_id}))

    def expect_samples(self, cut: int) -> dict[str, int]:
        """Return what must be there after so many calls."""
        return next((samples for calls, samples in reversed(self.committed) if calls <= cut), {})


def run(trial: Trial) -> None:
    place = make_fresh(trial.folder / "s")
    life = Life()
    with watch_calls(str(place), after=lambda *event: life.events.append(event)):
        _write_and_remove(place, life)
    trial.counts["calls of one store"] = len(life.events)
    after = trial.folder / "after"
    while trial.more():
        cut = trial.chance.randrange(len(life.events) + 1)
        disk = Disk(str(place))
        for event in life.events[:cut]:
            disk.apply(event)
        disk.cut(make_fresh(after), trial.chance)
        expected = life.expect_samples(cut)
        trial.counts["with something committed"] += bool(expected)
        if expected or (after / MARKER).exists():
            problem = find_loss(after, expected)
            if problem is not None:
                trial.fail(f"try {trial.tried}, after call {cut} {life.events[cut - 1][:2]}: {problem}")
        trial.tried += 1


def _write_and_remove(place: Path, life: Life) -> None:
    """Write two runs, one of them in two goes; merge, tag and clean the first, remove it, and write a third."""
    first = _write(RunWriter.create(str(place)), life, commits=2)
    first.finish("complete")
    second = _write(RunWriter.create(str(place)), life)
    second.finish("interrupted")
    _write(RunWriter.resume(str(place), second.run.run_id), life).finish("complete")
    for what in ("merge", "tag", "clean"):
        keep_up(what, place, first.run.run_id)
    life.drop(first.run.run_id)
    keep_up(REMOVE, place, first.run.run_id)
    _write(RunWriter.create(str(place)), life).finish("complete")


def _write(writer: RunWriter, life: Life, commits: int = 1) -> RunWriter:
    begun = writer.run.samples
    for number in range(commits):
        writer.append(visits(writer.run.run_id, begun + number * BATCH))
        writer.flush()
        life.note(**{writer.run.run_id: begun + (number + 1) * BATCH})
    return writer
