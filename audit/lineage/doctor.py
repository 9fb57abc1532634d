"""What a recording of a dataset will hold, found out by recording a few samples of it.

Nothing is guessed: the samples are recorded into a store that is thrown away, replayed from it, and what the store says
is the answer.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

from audit.errors import UsageError
from audit.lineage.replay.replay import replay
from audit.plainjson import JsonObject
from audit.provenance import note_missing_extension
from audit.recorders.loop.recording import Recording
from audit.recorders.randomness.generator_states import global_sources
from audit.sources import open_dataset
from audit.store.read.reader import Reader


@dataclass(slots=True)
class Diagnosis:
    """What a recording of a dataset will hold, and what it will not."""

    dataset: str
    samples: int = 0
    #: Path and name of each stage, in order.
    stages: list[tuple[str, str]] = field(default_factory=list)
    #: Names of the stages that draw random numbers.
    random_stages: list[str] = field(default_factory=list)
    #: Random number generators that the samples drew from.
    generators: list[str] = field(default_factory=list)
    #: The source of each sample that was tried.
    sources: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    #: How many of the samples a replay made again exactly; None where the dataset cannot be replayed.
    identical: int | None = None
    failures: list[str] = field(default_factory=list)
    #: Changes of the values that no stage explains, with the function, file and line that made them.
    unrecorded: list[str] = field(default_factory=list)
    #: Everything else that the recording says.
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether there are samples, every change was seen, nothing failed, and a replay gives the same."""
        replayed = self.identical is None or self.identical == self.samples
        return self.samples > 0 and not self.unrecorded and not self.failures and replayed

    def as_json(self) -> JsonObject:
        """Return all of it as JSON holds it."""
        return asdict(self) | {"complete": self.is_complete}


def diagnose(dataset: Any, samples: int = 4) -> Diagnosis:
    """Record and replay the first samples of a dataset, and return what a recording of it will hold.

    The global random number generators have their states again afterwards.
    """
    if samples < 1:
        raise UsageError(f"samples cannot be {samples}.", hint="Give a whole number, 1 or more.")
    name = dataset if isinstance(dataset, (str, os.PathLike)) else None
    if name is not None:
        dataset = open_dataset(name)
    before = [source.take() for source in global_sources()]
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _diagnose(dataset, name, samples, os.path.join(folder, "lineage"))
    finally:
        for source, state in zip(global_sources(), before, strict=True):
            source.put(state)


def _diagnose(dataset: Any, name: str | os.PathLike[str] | None, samples: int, store: str) -> Diagnosis:
    found = Diagnosis(f"{type(dataset).__module__}.{type(dataset).__qualname__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Recording(store, capture="digest") as recording:
            _make(recording.dataset(dataset), samples)
    run = recording.run
    found.unrecorded = list(run.unrecorded or ())
    found.notes = [note for note in run.warnings if "did not see every change" not in note]
    if slow := note_missing_extension(run.versions):
        found.notes.append(slow)
    with Reader(store) as reader:
        _read(reader, found)
        if not found.samples:
            found.notes.append("The dataset gave no sample, so there is nothing to report about it.")
        if run.status == "complete" and found.samples and not _is_iterable(dataset):
            # A dataset that keeps its items gives other ones the second time: a replay opens it again.
            result = replay(reader, dataset=dataset if name is None else open_dataset(name))
            found.identical = result.identical
            found.notes += [f"Sample {one.index}: {one.name}: {one.reason}" for one in result.different[:3]]
    return found


def _is_iterable(dataset: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def _make(dataset: Any, samples: int) -> None:
    """Make the first samples; one that fails is a row of its own."""
    if _is_iterable(dataset):
        for _ in itertools.islice(iter(dataset), samples):
            pass
        return
    for index in range(min(samples, _length(dataset, samples))):
        try:
            dataset[index]
        except Exception:
            # Recorded as a failed sample, with its stage and error.
            continue


def _length(dataset: Any, samples: int) -> int:
    """Return the length of a dataset; of one without a length, how many of its first samples there are."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return samples


def _read(reader: Reader, found: Diagnosis) -> None:
    rows = reader.sql("SELECT source, label, status, failed_stage, error FROM samples ORDER BY index").fetchall()
    found.samples = len(rows)
    found.sources = [source for source, *_ in rows]
    found.labels = [label for _, label, *_ in rows]
    found.failures = [f"{row[0]} failed at {row[3]}: {row[4]}" for row in rows if row[2] == "failed"]
    stages = reader.sql("SELECT path, name, random FROM stages ORDER BY stage").fetchall()
    found.stages = list(dict.fromkeys((path, name) for path, name, _ in stages))
    found.random_stages = list(dict.fromkeys(name for _, name, is_random in stages if is_random))
    drawn = reader.sql("SELECT DISTINCT generator FROM rng ORDER BY ALL").fetchall()
    found.generators = [generator for (generator,) in drawn if not generator.startswith("batch")]
