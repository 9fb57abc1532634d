"""One call of a recorded model: which samples it was given, what it said, what its layers saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from audit.recorders.model.tasks.task_rows import TaskRows
from audit.store import wire as tables
from audit.store.stamped_rows import ColumnRows

if TYPE_CHECKING:
    from audit.recorders.model.layers import LayerHooks, LayerReading
    from audit.recorders.model.unpredicted_batch import UnpredictedBatch

#: The key of a prediction, with which the tables of single tasks begin.
TASK_KEY = ("run_id", "epoch", "index", "visit", "model", "call")

#: Columns that compare a prediction with the label or target of its sample.
_GRADES = ("label", "label_name", "correct", "loss", "label_rank", "target")

#: A batch, and a place in it.
Place = tuple["UnpredictedBatch", int]


@dataclass(slots=True, eq=False, kw_only=True)
class ModelStep:
    """A call under way, then done; written with the first of its batches, when its gradients have come too."""

    run_id: str
    number: int
    epoch: int
    batch: int | None
    phase: str
    rank: int | None
    #: The samples it is recorded for.
    rows: list[Place]
    #: For each of them its row of the model's input, and how many rows the input has.
    inputs: list[int]
    size: int
    #: The digest of each sample's row; None until they are asked for.
    digests: list[str | None] | None = None
    #: What the loop did to the batch before the model was given it.
    operations: tuple[str, ...] = ()
    #: For each of its samples, what its row was mixed from in the loop; None where it was not mixed.
    parents: list[tuple[Place, ...] | None] = field(default_factory=list)
    #: Columns of `predictions`; before the logits are known only those of the key.
    columns: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    gradient_norm: float | None = None
    seen: list[tuple[LayerHooks, LayerReading]] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    #: The same samples were given to a model before: the step is that call's.
    follows: bool = False
    #: This model was given a sample of them before: its layers were recorded then.
    repeats: bool = False
    #: The name of the model, and its place among the recorded models.
    model: str | None = None
    order: int = 0
    #: Which of all calls of recorded models it is.
    call: int | None = None
    written: bool = False
    #: Which of the model's outputs it is, where several are graded.
    head: str | None = None
    #: What a prediction of boxes, masks or tokens consists of; or all outputs of a model that has several.
    task: TaskRows | None = None
    #: The prediction of another head than the first, or of none: views that grade one prediction of a visit leave it out.
    is_beside: bool = False
    #: The output was read: there are rows of `predictions`.
    is_read: bool = False

    def __post_init__(self) -> None:
        count = len(self.rows)
        self.parents = self.parents or [None] * count
        self.columns = {
            "run_id": [self.run_id] * count,
            "epoch": [pending.epoch for pending, _ in self.rows],
            "index": [pending.indices[place] for pending, place in self.rows],
            "visit": [pending.visits[place] for pending, place in self.rows],
        }

    @property
    def mixed_rows(self) -> list[bool]:
        """Whether each row was mixed from several samples, by the loop or before the batch came."""
        rows = zip(self.rows, self.parents, strict=True)
        return [parents is not None or place in pending.mixed_places for (pending, place), parents in rows]

    @property
    def has_mixed_rows(self) -> bool:
        """Whether the loop mixed samples into a row."""
        return any(parents is not None for parents in self.parents)

    def copy_for_next_head(self) -> ModelStep:
        """Return the same call, for the prediction of another output."""
        return replace(self, columns={}, task=None, follows=True, seen=[], is_beside=True, is_read=False)

    def predict(self, columns: Mapping[str, Any], digests: list[str | None]) -> None:
        """Take the columns that follow from the output of the model."""
        self._complete(dict(columns), digests)

    def keep_outputs(self, task: TaskRows) -> None:
        """Take all outputs of the call; without a prediction they have a number that no prediction has."""
        if self.task is None:
            self.task = TaskRows()
        self.task.tables |= task.tables
        self.columns["model"] = [self.model] * len(self.rows)
        self.is_beside = self.is_beside or not self.is_read

    def predict_task(self, task: TaskRows, labels: Sequence[int | None], digests: list[str | None]) -> None:
        """Take boxes, masks or tokens as the prediction."""
        self.task = task
        self._complete({"label": list(labels), **task.columns}, digests)

    def _complete(self, columns: dict[str, Any], digests: list[str | None]) -> None:
        self.is_read = True
        self.columns = columns | self.columns
        self.columns |= {
            "input_digest": digests,
            "batch": [pending.batches[place] for pending, place in self.rows],
            "position": [pending.positions[place] for pending, place in self.rows],
            "step": [self.number] * len(self.rows),
            "model": [self.model] * len(self.rows),
            "number": [self.call] * len(self.rows),
            "operations": self._operations(digests),
            "head": [self.head] * len(self.rows),
        }

    @property
    def loss(self) -> float | None:
        """The mean loss of its samples; None where none has one."""
        pairs = zip(self.columns.get("loss", ()), self.mixed_rows, strict=False)
        losses = [loss for loss, is_mixed in pairs if loss is not None and not is_mixed]
        return sum(losses) / len(losses) if losses else None

    def _operations(self, digests: list[str | None]) -> list[list[str] | None]:
        """Return what lies between each sample's last stage and the model's input, where they differ."""
        found: list[list[str] | None] = []
        for (pending, place), digest in zip(self.rows, digests, strict=True):
            is_same = digest is not None and digest == pending.digests[place]
            found.append(None if is_same or not self.operations else list(self.operations))
        return found

    def tables_of(self, pending: UnpredictedBatch) -> dict[str, Any]:
        """Return the rows of predictions and outputs of one of the step's batches, numbered among those of their visit."""
        own = [row for row, (owner, _) in enumerate(self.rows) if owner is pending]
        columns = self._without_grades()
        if len(own) < len(self.rows):
            columns = {
                name: column[own] if hasattr(column, "shape") else [column[n] for n in own]
                for name, column in columns.items()
            }
        beside = [self.is_beside or is_mixed for is_mixed in self.mixed_rows]
        if self.is_read or (self.task is not None and self.task.has_samples):
            columns = columns | {"call": [pending.next_call(self.rows[row][1], is_beside=beside[row]) for row in own]}
        else:
            columns = columns | {"call": [None] * len(own)}
        found: dict[str, Any] = {"predictions": ColumnRows("predictions", columns)} if self.is_read else {}
        if self.task is not None:
            number = {"number": self.call}
            keys = [{name: columns[name][place] for name in TASK_KEY} | number for place in range(len(own))]
            # Of a call with samples of several batches, what belongs to all of them is written with the first.
            whole = {"run_id": self.run_id, "epoch": self.epoch, "model": self.model, **number}
            is_home = pending is self.rows[0][0]
            found |= task_tables(self.task, dict(zip(own, keys, strict=True)), whole if is_home else None)
        return found

    def _without_grades(self) -> dict[str, Any]:
        """Return the columns, where a row that was mixed from several samples is graded against none of them."""
        mixed = self.mixed_rows
        if not any(mixed):
            return self.columns
        columns = dict(self.columns)
        for name in _GRADES:
            if name in columns:
                columns[name] = [None if gone else one for one, gone in zip(columns[name], mixed, strict=True)]
        if not self.is_read:
            return columns
        columns["operations"] = [
            [name for name in one or () if name != "mix"] + (["mix"] if is_mixed else []) or None
            for one, is_mixed in zip(columns["operations"], mixed, strict=True)
        ]
        return columns

    def own_row(self) -> ColumnRows:
        """Return the row of `steps`."""
        columns: dict[str, Any] = {
            "run_id": self.run_id,
            "epoch": self.epoch,
            "step": self.number,
            "batch": self.batch,
            "phase": self.phase,
            "loss": self.loss,
            "learning_rate": self.learning_rate,
            "gradient_norm": self.gradient_norm,
            "samples": len(self.rows),
            "rank": self.rank,
        }
        return ColumnRows("steps", {name: [value] for name, value in columns.items()})


def task_tables(
    task: TaskRows, keys: Mapping[int, Mapping[str, Any]], whole: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the tables of those samples, by their number in the call, that have a key here.

    `whole` is the key of rows that belong to the whole call; without it they are left out.
    """
    every_key: dict[int | None, Mapping[str, Any]] = dict(keys.items())
    if whole is not None:
        every_key[None] = whole
    found = {}
    for name, every in task.tables.items():
        own = [{**row, **every_key[row["sample"]]} for row in every if row["sample"] in every_key]
        if own:
            columns = dict.fromkeys(column for row in own for column in row if column != "sample")
            found[name] = tables.table_of(name, {column: [row.get(column) for row in own] for column in columns})
    return found
