"""A power cut by the letter of POSIX: what was not flushed may be there, partly there, or not.

The calls of a writer are noted once. For each try the disk is computed as a cut after some of them may leave it: a file that was
not flushed holds any beginning of itself, or zeros; each name in a folder that was not flushed since is the old or the new one,
independently of the others. What was committed before the cut must be there.
"""

from __future__ import annotations

import random
from pathlib import Path

from audit.store.manifest import MARKER
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watched
from bench.campaign.stores import BATCH, fresh, lost, visits
from bench.campaign.trial import Trial

GOAL = 10_000
COUNTS = "simulated power cuts"
_COMMITS = 5
_FOLDER = -1

Event = tuple[str, tuple[str, ...], bytes]


class Disk:
    """Names and contents, each as they are and as they were when they were last flushed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._next = 0
        self._now: dict[str, dict[str, int]] = {root: {}}
        self._flushed: dict[str, dict[str, int]] = {root: {}}
        self._data: dict[int, bytes] = {}
        self._safe: dict[int, bytes] = {}

    def apply(self, event: Event) -> None:
        """Do what a call did."""
        name, paths, data = event
        folder, base = paths[-1].rsplit("/", 1)
        if name == "create":
            self._next += 1
            self._now[folder][base] = self._next
            self._data[self._next] = b""
        elif name == "write":
            self._data[self._now[folder][base]] += data
        elif name == "mkdir":
            self._now[folder][base] = _FOLDER
            self._now[paths[0]], self._flushed[paths[0]] = {}, {}
        elif name == "unlink":
            self._now[folder].pop(base, None)
        elif name == "fsync":
            self._flush(paths[0], folder, base)
        else:  # link, replace, rename
            source, old = paths[0].rsplit("/", 1)
            self._now[folder][base] = self._now[source][old]
            if name != "link":
                del self._now[source][old]

    def _flush(self, path: str, folder: str, base: str) -> None:
        if path in self._now:
            self._flushed[path] = dict(self._now[path])
        else:
            number = self._now[folder][base]
            self._safe[number] = self._data[number]

    def cut(self, target: Path, chance: random.Random, folder: str | None = None) -> None:
        """Write the files that the disk may hold after a cut."""
        folder = folder or self._root
        now, flushed = self._now[folder], self._flushed[folder]
        for name in {*now, *flushed}:
            number = now.get(name) if chance.random() < 0.5 else flushed.get(name)
            if name in now and now.get(name) == flushed.get(name):
                number = now[name]
            if number == _FOLDER:
                (target / name).mkdir()
                self.cut(target / name, chance, f"{folder}/{name}")
            elif number is not None:
                (target / name).write_bytes(self._content(number, chance))

    def _content(self, number: int, chance: random.Random) -> bytes:
        data, safe = self._data[number], self._safe.get(number)
        if safe == data:
            return data
        kind = chance.randrange(4)
        cut = chance.randrange(len(data) + 1)
        return (data, data[:cut], bytes(len(data)), data[:cut] + bytes(len(data) - cut))[kind]


def run(trial: Trial) -> None:
    place = fresh(trial.folder / "s")
    events: list[Event] = []
    committed: list[tuple[int, int]] = []  # after so many calls, so many samples
    with watched(str(place), after=lambda *event: events.append(event)):
        writer = RunWriter.create(str(place))
        run_id = writer.run.run_id
        for number in range(_COMMITS):
            writer.append(visits(run_id, number * BATCH))
            writer.flush()
            committed.append((len(events), (number + 1) * BATCH))
        writer.finish("complete")
        committed.append((len(events), _COMMITS * BATCH))
    trial.counts["calls of one run"] = len(events)
    after = trial.folder / "after"
    while trial.more():
        cut = trial.chance.randrange(len(events) + 1)
        disk = Disk(str(place))
        for event in events[:cut]:
            disk.apply(event)
        disk.cut(fresh(after), trial.chance)
        samples = max((count for calls, count in committed if calls <= cut), default=0)
        trial.counts["with something committed"] += bool(samples)
        if samples or (after / MARKER).exists():
            problem = lost(after, run_id if samples else None, samples)
            if problem is not None:
                trial.fail(f"try {trial.tried}, after call {cut} {events[cut - 1][:2]}: {problem}")
        trial.tried += 1
