"""The nouns of a recording as plain values: what a run, a stage and a committed part are.

They cross every layer, so they depend on nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["running", "complete", "interrupted", "failed"]
Level = Literal["digest", "preview", "full"]

#: How much of a stage's output is kept, from least to most.
LEVELS: tuple[Level, ...] = ("digest", "preview", "full")
#: The recipe of digests that new runs are recorded with. Version 1 left out what a tv_tensor means beside its numbers,
#: pickled sparse, quantised and nested tensors, and knew what cannot be pickled by its text.
DIGEST_VERSION = 2


#: What a model's output may be declared to be, with the task that each stands for.
OUTPUT_TASKS = {
    "logits": "classification",
    "probabilities": "classification",
    "sigmoid": "classification",
    "log_probabilities": "classification",
    "multilabel": "multilabel",
    "regression": "regression",
    "embedding": "embedding",
}


@dataclass(slots=True)
class Run:
    """One row of `runs`: a recorded execution of a pipeline."""

    run_id: str
    sequence: int
    started_at: str
    name: str | None = None
    status: Status = "running"
    finished_at: str | None = None
    seconds: float | None = None
    command: str | None = None
    seed: int | None = None
    capture: str | None = None
    dataset: str | None = None
    dataset_digest: str | None = None
    model: str | None = None
    model_digest: str | None = None
    arch: str | None = None
    classes: list[str] | None = None
    pipeline_digest: str | None = None
    samples: int = 0
    failed: int = 0
    graded: int = 0
    wrong: int = 0
    #: The last epoch that was recorded whole; `accuracy` is that of this epoch.
    last_epoch: int | None = None
    accuracy: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str | None = None
    host: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    expected: int | None = None
    output: str | None = None
    task: str | None = None
    output_evidence: str | None = None
    warnings: list[str] = field(default_factory=list)
    unrecorded: list[str] | None = None

    @property
    def digest_version(self) -> int:
        """The version of the recipe that the digests of its stage outputs follow (docs/FORMAT-values.md)."""
        return int(self.versions.get("digests", 1))

    def _repr_html_(self) -> str | None:
        # A notebook asks for this; it lies far above, so it is imported only then.
        from audit.report.html.notebook import run_html

        return run_html(self)

    def as_json(self) -> dict[str, Any]:
        """The row as `run.json` keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Run:
        """The row as read back; keys of a later minor version are left aside."""
        known = cls.__dataclass_fields__
        return cls(**{key: value for key, value in row.items() if key in known})


#: The path of a stage that was found by its call begins with this.
CALL_PREFIX = "call."


def is_call(path: str) -> bool:
    """Return whether a stage's path says that it was found by its call."""
    return path.removeprefix("target.").startswith(CALL_PREFIX)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a command has come: what it is doing, how much of it is done, and of how many (None: not known yet)."""

    done: int = 0
    total: int | None = None
    failed: int = 0
    doing: str = ""
    #: Something to tell the user at once, such as a doubt about the model's classes.
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of `stages`: one step of the pipeline."""

    stage: int
    path: str
    name: str
    qualname: str
    parameters: str | None = None
    random: bool = False
    source_code_digest: str | None = None

    @property
    def is_target(self) -> bool:
        """Whether this stage works on the label rather than on the model's input."""
        return self.path.startswith("target")


@dataclass(frozen=True, slots=True)
class Part:
    """One committed Parquet file of a run, as its manifest lists it."""

    table: str
    file: str
    rows: int
    bytes: int
    sha256: str
    first_index: int | None = None
    last_index: int | None = None
    #: Version of its columns. Manifests of format version 1 do not say it.
    schema: int = 1


class Columns:
    """Rows gathered column by column, ready to become an Arrow batch."""

    __slots__ = ("data", "rows")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.data: dict[str, list[Any]] = {name: [] for name in names}
        self.rows = 0

    def add(self, **values: Any) -> None:
        """Append one row; a name left out is NULL."""
        for name, column in self.data.items():
            column.append(values.get(name))
        self.rows += 1
