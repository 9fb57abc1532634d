"""A dataset whose items leave rows behind: the recorder that runs inside a worker.

`RecordedDataset` is what `audit run` gives to the DataLoader. It never raises for a sample: what
cannot be read or transformed becomes a failed row with its path, stage and error.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from audit.recorders.calls.call_stages import CallStages
from audit.recorders.packed_rows import parcel
from audit.recorders.randomness.seeding import Seeder
from audit.recorders.stages.discover import Pipeline, find_pipeline, walk
from audit.recorders.stages.stand_in import StageStandIn, set_current_visit
from audit.recorders.visit.items import label_number, split_item
from audit.recorders.visit.opened_files import noting_opened_files
from audit.recorders.visit.origin import class_names, origin_of
from audit.recorders.visit.sample_row import add_sample
from audit.recorders.visit.visit import Visit, inside_stage
from audit.records import LEVELS, Level, Stage
from audit.store import wire as batch
from audit.usercode import CodeFiles


class Instrument:
    """Puts stand-ins into a pipeline's slots for the length of one visit."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._pairs: list[tuple[Any, Any]] | None = None
        #: Whether the last visit found other transforms in the dataset than this pipeline's.
        self.changed = False
        self._calls: CallStages | None = None

    def _build(self) -> list[tuple[Any, Any]]:
        pairs: list[tuple[Any, Any]] = list(self.pipeline.expanded)
        for step, slot in walk(self.pipeline):
            pairs.append((slot, StageStandIn(slot.get(), _runner(step))))
        pairs += [(slot, StageStandIn(slot.get(), Visit.read)) for slot in self.pipeline.reads]
        loads = Visit.load if self.pipeline.reads else _load_path
        pairs += [(slot, StageStandIn(slot.get(), loads)) for slot in self.pipeline.loads]
        return pairs

    @contextlib.contextmanager
    def watching(self, level: Level | Literal["verify"], *, refuse_none: bool = False) -> Iterator[Visit]:
        """Make one visit: stand-ins in the slots, the visit current in this thread; it ends with the block."""
        with self.observing(level, refuse_none=refuse_none) as visit:
            try:
                yield visit
            finally:
                visit.end()

    @contextlib.contextmanager
    def observing(self, level: Level | Literal["verify"], *, refuse_none: bool = False) -> Iterator[Visit]:
        """Make one visit, as `watching` does, but leave it open: whoever made it calls `Visit.end`."""
        # A stand-in for what is no longer there would bring it back: then the visit is of no stage at all.
        self.changed = not self.pipeline.found.is_current()
        if self._pairs is None and not self.changed:
            self._pairs = self._build()
        pairs = (self._pairs or []) if not self.changed else []
        visit = Visit(self.pipeline if not self.changed else find_pipeline(None), level, refuse_none=refuse_none)
        with self._observing_calls(visit), noting_opened_files(visit.opened):
            for slot, stand_in in pairs:
                slot.put(stand_in)
            set_current_visit(visit)
            try:
                yield visit
            finally:
                set_current_visit(None)
                for slot, _ in reversed(pairs):
                    slot.restore()

    def _observing_calls(self, visit: Visit) -> contextlib.AbstractContextManager[None]:
        if self.pipeline.observed is None or self.changed:
            return contextlib.nullcontext()
        if self._calls is None:
            self._calls = CallStages(self.pipeline.observed, self.pipeline)
        return self._calls.observing(visit)

    def describe(self, visit: Visit) -> dict[int, Stage]:
        """Return the stages of a visit that were not known before it, by their ordinals in the visit."""
        added: dict[int, Stage] = {}
        for ordinal, what in visit.added.items():
            assert isinstance(what, str) or self._calls is not None
            added[ordinal] = inside_stage(what) if isinstance(what, str) else self._calls.describe(what)  # type: ignore[union-attr]
        return added

    def __getstate__(self) -> dict[str, Any]:
        return {"pipeline": self.pipeline, "_pairs": None, "changed": False, "_calls": None}


def _runner(step: Any) -> Any:
    def run(visit: Visit, target: Any, args: Any, kwargs: Any) -> Any:
        return visit.run(step, target, args, kwargs)

    return run


def _load_path(visit: Visit, target: Any, args: Any, kwargs: Any) -> Any:
    """A loader that is given a path: torchvision's own decodes the very buffer that is hashed."""
    path = args[0] if args else None
    if isinstance(path, str):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            visit.fail("load", error)
            raise
        visit.hash_source(data)
        if getattr(target, "__module__", "") == "torchvision.datasets.folder" and _pillow_backend():
            return visit.load(_decode_rgb, (data,), {})
    return visit.load(target, args, kwargs)


def _pillow_backend() -> bool:
    import torchvision

    return bool(torchvision.get_image_backend() == "PIL")


def _decode_rgb(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


@dataclass(slots=True)
class Batch:
    """What a worker hands over: inputs for the model, and the rows as one block of bytes."""

    indices: list[int]
    #: Places in the batch whose sample did not fail.
    ok: list[int]
    labels: list[int | None]
    #: One stacked tensor, or a list where shapes differ; None when no model wants them.
    inputs: Any
    last_kind: str | None
    records: torch.Tensor
    payload_bytes: int
    problems: list[str]
    #: A sentence for each sample that failed.
    failures: list[str]

    def pin_memory(self) -> Batch:
        """Called by the DataLoader's pinning thread; the rows need no pinning."""
        if isinstance(self.inputs, torch.Tensor):
            self.inputs = self.inputs.pin_memory()
        return self


class CaptureLevel:
    """How much is kept of each output, in memory that all workers share and the main process may lower."""

    def __init__(self, level: Level) -> None:
        self._shared = torch.tensor([LEVELS.index(level)], dtype=torch.uint8)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def get(self) -> Level:
        """The level in force."""
        return LEVELS[int(self._shared[0])]

    def lower(self, level: Level) -> None:
        """Keep less from now on."""
        self._shared[0] = min(int(self._shared[0]), LEVELS.index(level))


class RecordedDataset:
    """Fetches whole batches of samples, each recorded on its way."""

    def __init__(
        self,
        dataset: Any,
        pipeline: Pipeline,
        *,
        level: CaptureLevel,
        seeder: Seeder | None,
        want_inputs: bool,
        epoch: int = 0,
        code: CodeFiles | None = None,
    ) -> None:
        # First, so that it is unpickled first: a spawned worker then imports the code that this process runs.
        self.code = code
        self.dataset = dataset
        self.instrument = Instrument(pipeline)
        self.level = level
        self.seeder = seeder
        self.want_inputs = want_inputs
        self.epoch = epoch
        self.classes = class_names(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """One batch; called by the DataLoader in a worker."""
        samples, outputs, payloads = (batch.columns(name) for name in ("samples", "stage_outputs", "payloads"))
        ok: list[int] = []
        inputs: list[Any] = []
        labels: list[int | None] = []
        problems: list[str] = []
        failures: list[str] = []
        last_kind = None
        for position, index in enumerate(indices):
            visit, value, label = self.visit(index)
            visit.write(index, position, outputs, payloads)
            add_sample(samples, index, position, visit, origin_of(self.dataset, index), label, self.classes)
            if visit.problem:
                problems.append(f"sample {index}: {visit.problem}")
            if visit.error is not None:
                source = samples.data["source"][-1]
                failures.append(f"Sample {index} ({source}) failed at {visit.failed_stage}: {visit.error}")
            else:
                ok.append(position)
                labels.append(label)
                last_kind = visit.last_kind
                if self.want_inputs:
                    inputs.append(value)
        payload_bytes = sum(len(data) for data in payloads.data["data"])
        records = parcel({"samples": samples, "stage_outputs": outputs, "payloads": payloads})
        return Batch(list(indices), ok, labels, _stack(inputs), last_kind, records, payload_bytes, problems, failures)

    def died(self, index: int) -> Batch:
        """The batch of one sample whose worker process died."""
        visit = Visit(self.instrument.pipeline, "digest")
        visit.fail("worker", RuntimeError("the worker process was killed or crashed at this sample, twice"))
        samples = batch.columns("samples")
        add_sample(samples, index, 0, visit, origin_of(self.dataset, index), None, self.classes)
        records = parcel({"samples": samples})
        failure = f"Sample {index} failed: {visit.error}"
        return Batch([index], [], [], None, None, records, 0, [], [failure])

    def visit(self, index: int) -> tuple[Visit, Any, int | None]:
        """One sample through the pipeline: the visit, the model's input and the label."""
        made = self._visit(index)
        if self.seeder is not None and self.seeder.appeared():
            # A generator that is made when it is first needed had not been seeded: once more, now that it is there.
            made = self._visit(index)
        return made

    def _visit(self, index: int) -> tuple[Visit, Any, int | None]:
        if self.seeder is not None:
            self.seeder(self.epoch, index)
        value: Any = None
        label: Any = None
        with self.instrument.watching(self.level.get(), refuse_none=True) as visit:
            try:
                value, label = split_item(self.dataset[index])
                self._whole(visit, value)
            except (Exception, SystemExit) as error:
                # StopIteration too: escaping, it would end the epoch without a word; and so would an exit the run.
                visit.fail("dataset" if visit.rows else "load", error)
        return visit, value, label_number(label)

    def _whole(self, visit: Visit, value: Any) -> None:
        """Check that what came out is there, and that stage 0 is known."""
        if value is None:
            visit.fail(visit.last_name or "dataset", TypeError("the pipeline returned None instead of a value"))
        elif 0 not in visit.rows and visit.problem is None:
            visit.loaded(value)


def _stack(inputs: list[Any]) -> Any:
    """One tensor where the samples have one shape, as the DataLoader would; else the list."""
    if not inputs:
        return None
    try:
        return torch.utils.data.default_collate(inputs)
    except (RuntimeError, TypeError):
        return inputs


def as_is(fetched: Any) -> Any:
    """The collate function of a loader whose dataset fetches whole batches."""
    return fetched
