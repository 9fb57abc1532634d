"""The nouns of a recording as plain values: what a run, a stage and a committed part are.

They cross every layer, so they depend on nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Annotated, Any, Literal

from audit.columns import BIGINT, BOOLEAN, DOUBLE, INTEGER, MAP, TIMESTAMP, VARCHAR, VARCHARS
from audit.display import NotebookView
from audit.split_names import EVALUATION
from audit.texts import as_utf8

Status = Literal["running", "complete", "interrupted", "failed"]
Level = Literal["digest", "preview", "full"]

#: How much of a stage's output is kept, from least to most.
LEVELS: tuple[Level, ...] = ("digest", "preview", "full")
#: How many bytes of outputs a run may store, unless another number is given.
DEFAULT_BUDGET = 2 * 2**30

#: What a model's output may be declared to be, with the task that each stands for.
OUTPUT_TASKS = {
    "logits": "classification",
    "probabilities": "classification",
    "sigmoid": "classification",
    "log_probabilities": "classification",
    "multilabel": "multilabel",
    "regression": "regression",
    "embedding": "embedding",
    "boxes": "detection",
    "masks": "segmentation",
    "tokens": "tokens",
}
#: The stage at which a sample of `audit run` failed that the model could not take.
MODEL_STAGE = "model"
#: What the row of a sample that took too long says; without a number, so that a replay can give the same.
STALL_ERROR = "the sample took longer than --stall-timeout allows and was given up"


@dataclass(slots=True)
class Run(NotebookView):
    """One row per run: a recorded execution of a pipeline. Made from the manifests; there is no such Parquet file."""

    run_id: Annotated[str, VARCHAR("the run's id")]
    _: KW_ONLY
    name: Annotated[str | None, VARCHAR("a name that was given; several runs may share one", null="not named")] = None
    status: Annotated[
        Status,
        VARCHAR("`running`, `complete`, `interrupted`, `failed`; a run in which every sample failed is `failed`"),
    ] = "running"
    started_at: Annotated[str, TIMESTAMP("when it began")] = ""
    finished_at: Annotated[str | None, TIMESTAMP("when it ended", null="it has not, or was killed")] = None
    seconds: Annotated[float | None, DOUBLE("time spent recording, over all its resumptions", null="no commit yet")] = (
        None
    )
    command: Annotated[
        str | None,
        VARCHAR("the command line, with `***` for what looks like a password, a token or a key", null="there is none"),
    ] = None
    seed: Annotated[
        int | None, BIGINT("each visit's seed follows from it, the epoch and the index", null="not seeded")
    ] = None
    capture: Annotated[str | None, VARCHAR("how much is kept of each output, and why", null="not decided yet")] = None
    dataset: Annotated[str | None, VARCHAR("what `--dataset` named", null="recorded from Python")] = None
    dataset_digest: Annotated[str | None, VARCHAR("of the list of samples, without their content", null="unknown")] = (
        None
    )
    model: Annotated[str | None, VARCHAR("what `--model` named", null="no model")] = None
    model_digest: Annotated[str | None, VARCHAR("of the checkpoint", null="no model, or no file")] = None
    arch: Annotated[str | None, VARCHAR("the architecture", null="no model, or unknown")] = None
    classes: Annotated[list[str] | None, VARCHARS("class names in label order", null="unknown")] = None
    pipeline_digest: Annotated[str | None, VARCHAR("of the descriptions of all stages", null="unknown")] = None
    samples: Annotated[int, BIGINT("visits recorded: a sample counts once for each of its visits")] = 0
    failed: Annotated[int, BIGINT("of them, those that failed")] = 0
    wrong: Annotated[int, BIGINT("predictions that are not correct, of all epochs", null="nothing was graded")] = 0
    last_epoch: Annotated[
        int | None,
        BIGINT(
            "the last epoch that was recorded whole: the newest of a run that is complete, else the one before "
            "the newest",
            null="no epoch is whole, or recorded by a version that did not keep it",
        ),
    ] = None
    accuracy: Annotated[
        float | None,
        DOUBLE(
            "share of graded predictions of `last_epoch` that are correct, of the split `accuracy_split` if it is set; where no "
            "epoch is whole, of the newest as far as it was recorded",
            null="nothing was graded in it",
        ),
    ] = None
    versions: Annotated[
        dict[str, str],
        VARCHAR(
            "JSON: python, torch, torchvision, pillow, numpy, audit; `digests`: the version of the recipe of its "
            "digests; `native`: `yes` or `no`, whether the C extension was used"
        ),
    ] = field(default_factory=dict)
    git_commit: Annotated[
        str | None, VARCHAR("of the working directory, with `+changes` when files differ from it", null="no repository")
    ] = None
    host: Annotated[str | None, VARCHAR("the machine's name", null="not recorded")] = None
    tags: Annotated[dict[str, str], MAP("given by the user")] = field(default_factory=dict)
    recipe: Annotated[
        dict[str, Any],
        VARCHAR(
            "JSON: all that rebuilds the pipeline (`kind` is `run`), or what is known of it; `layers`: those that"
            " were asked for"
        ),
    ] = field(default_factory=dict)
    warnings: Annotated[list[str], VARCHARS("problems while recording, one sentence each")] = field(
        default_factory=list
    )
    sequence: Annotated[int, BIGINT("the order in which runs began")] = 0
    output: Annotated[
        str | None,
        VARCHAR(
            "what the graded model's numbers are: `logits`, `probabilities`, `sigmoid`, `log_probabilities`, "
            "`multilabel`, `regression`, `embedding`",
            null="no model, or unknown",
        ),
    ] = None
    task: Annotated[
        str | None, VARCHAR("`classification`, `multilabel`, `regression` or `embedding`", null="as output")
    ] = None
    output_evidence: Annotated[
        str | None, VARCHAR("how `output` is known: it was declared, or what the first output showed", null="as output")
    ] = None
    unrecorded: Annotated[
        list[str] | None,
        VARCHARS(
            "changes of the values that no stage explains: what, in which function, by which calls; empty where "
            "every item is what its last stage returned. Also files of which it is not known which samples are read from them",
            null="recorded by a version, or in a way, that does not look for them",
        ),
    ] = None
    accuracy_split: Annotated[
        str | None,
        VARCHAR(
            "the split that `accuracy` is of. If `last_epoch` has samples of several splits, it is the one that models are evaluated "
            f"on, the first of {', '.join(f'`{name}`' for name in EVALUATION)} with graded predictions",
            null="`accuracy` is of all samples of the epoch",
        ),
    ] = None
    # Only in run.json, not in the table.
    graded: int = 0
    expected: int | None = None

    def __post_init__(self) -> None:
        self.tags = as_tags(self.tags)

    @property
    def digest_version(self) -> int:
        """The version of the recipe that the digests of its stage outputs follow (docs/FORMAT-values.md)."""
        return int(self.versions.get("digests", 1))

    def as_json(self) -> dict[str, Any]:
        """Return the row as `run.json` keeps it."""
        return asdict(self)


def add_warning(run: Run, message: str) -> None:
    """Add a warning to a run's row, unless it is there already."""
    if message not in run.warnings:
        run.warnings.append(message)


def add_unrecorded(run: Run, texts: Iterable[str], most: int) -> None:
    """Add texts to `unrecorded` of a run's row that it does not have, until it has `most` of them."""
    known = run.unrecorded = run.unrecorded if run.unrecorded is not None else []
    known.extend(text for text in dict.fromkeys(texts) if text not in known and len(known) < most)


def as_tags(tags: Mapping[Any, Any]) -> dict[str, str]:
    """Return tags as a store keeps them: texts, whatever was given."""
    return {as_utf8(_as_text(key)): "" if value is None else as_utf8(_as_text(value)) for key, value in tags.items()}


def _as_text(value: Any) -> str:
    # A text may be a member of an enumeration too, which `str` would give by its name.
    return str.__str__(value) if isinstance(value, str) else str(value)


#: The path of a stage that was found by its call begins with this.
CALL_PREFIX = "call."
#: The path of a stage that works on whole batches begins with this.
BATCH_PREFIX = "batch."
#: How a text of `runs.unrecorded` ends that is about source files, and not about stages.
FILES_NOT_KNOWN = "the samples that were read from it are not known"


def is_call(path: str) -> bool:
    """Return whether a stage's path says that it was found by its call."""
    return path.removeprefix("target.").startswith(CALL_PREFIX)


def is_about_files(text: str) -> bool:
    """Return whether a text of `runs.unrecorded` is about source files, and not about stages."""
    return text.endswith(FILES_NOT_KNOWN)


def is_batch_stage(path: str) -> bool:
    """Return whether a stage works on whole batches, so that no single sample's output can be made again."""
    return path.startswith(BATCH_PREFIX)


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
    """One row per stage of the pipeline."""

    stage: Annotated[int, INTEGER("ordinal, see below")]
    path: Annotated[
        str,
        VARCHAR(
            "place in the pipeline: `0` is load, `2.1` the first stage inside the second, `target.1` a stage of "
            "the label or of a second input, `outer.1` a stage of a dataset that wraps one with stages of its own, `inside.NAME` one "
            "that the dataset's own code names, `call.aug.1` one that was found by its call, `batch.collate` one "
            "that works on whole batches"
        ),
    ]
    name: Annotated[str, VARCHAR("class or function name")]
    qualname: Annotated[str, VARCHAR("with its module")]
    parameters: Annotated[str | None, VARCHAR("JSON: its settings", null="none are known")] = None
    random: Annotated[
        bool | None,
        BOOLEAN("whether it draws random numbers, as its class shows", null="it is code that does not show that"),
    ] = None
    source_code_digest: Annotated[str | None, VARCHAR("of its source code", null="it has none in Python")] = None

    @property
    def is_target(self) -> bool:
        """Whether this stage works on the label rather than on the model's input."""
        return self.path.startswith("target")


@dataclass(slots=True)
class Part:
    """One committed Parquet file of a run, as its manifest lists it. Never changed; frozen, it would take four times as long to make."""

    table: str
    file: str
    rows: int
    bytes: int
    sha256: str
    first_index: int | None = None
    last_index: int | None = None
    #: Version of its columns. Manifests of format version 1 do not say it.
    schema: int = 1
    #: A file of the run with the indices of the commit, where bounds would not tell (see store/index_set.py); without
    #: pages from earlier versions, with pages since.
    indices: str | None = None
    index_pages: str | None = None

    @property
    def index_file(self) -> str | None:
        """The file with the indices of its commit; None where it has none."""
        return self.index_pages or self.indices


class Columns:
    """Rows of one table, gathered value by value and laid out as columns when these are asked for.

    No object is kept for a row: Python's garbage collector would be called for every few hundred of them, and looks at
    all objects of the user's program.
    """

    __slots__ = ("_columns", "_given", "_names", "_waiting", "rows")

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        #: What is laid out; nothing until it is asked for.
        self._columns: dict[str, list[Any]] = {}
        #: The values of rows that are not laid out yet, row behind row, and the names of a row's values.
        self._waiting: list[Any] = []
        self._given: tuple[str, ...] = ()
        self.rows = 0

    @property
    def state(self) -> tuple[Any, ...]:
        """What `from_state` makes the same rows of: lists and texts, and the values."""
        return self._names, self._columns, self._waiting, self._given, self.rows

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Columns:
        """Return the rows of which another object gave its `state`."""
        rows = cls(state[0])
        _, rows._columns, rows._waiting, rows._given, rows.rows = state
        return rows

    def append(self, names: tuple[str, ...], row: tuple[Any, ...]) -> None:
        """Append one row, its values in the order of `names`; a column that is not named is NULL."""
        if names is not self._given:
            self._lay_out()
            self._given = names
        self._waiting += row
        self.rows += 1

    def values_of(self, names: tuple[str, ...]) -> list[Any]:
        """Return the list to append rows to, value behind value in the order of `names`; then call `count_rows`."""
        if names is not self._given:
            self._lay_out()
            self._given = names
        return self._waiting

    def count_rows(self) -> None:
        """Count the rows that were appended to the list of `values_of`."""
        laid_out = len(next(iter(self._columns.values()))) if self._columns else 0
        self.rows = laid_out + len(self._waiting) // len(self._given)

    def add(self, **values: Any) -> None:
        """Append one row; a name left out is NULL."""
        self.append(tuple(values), tuple(values.values()))

    def read_strided_values(self, name: str) -> tuple[list[Any], int, int] | None:
        """Return a list, where the column begins in it, and how far apart its values are; None for one of NULL alone."""
        if not self._is_flat:
            return self.data[name], 0, 1
        return (self._waiting, self._given.index(name), len(self._given)) if name in self._given else None

    @classmethod
    def join(cls, tables: Sequence[Columns]) -> Columns:
        """Return the rows of several tables with the same columns, one behind the other; these stay as they are."""
        joined = cls(tables[0]._names)
        for table in tables:
            if table._is_flat and (joined._is_flat or not joined.rows) and joined._given in ((), table._given):
                joined._given = table._given
                joined._waiting += table._waiting
            elif table.rows:
                columns = joined.data
                for name, column in table.data.items():
                    columns[name] += column
            joined.rows += table.rows
        return joined

    @property
    def _is_flat(self) -> bool:
        """Whether no row is laid out yet."""
        return bool(self._waiting) and len(self._waiting) == self.rows * len(self._given)

    @property
    def data(self) -> dict[str, list[Any]]:
        """The columns by name, all of one length."""
        self._lay_out()
        if not self._columns:
            self._columns = {name: [] for name in self._names}
        return self._columns

    def _lay_out(self) -> None:
        if not self._waiting:
            return
        if not self._columns:
            self._columns = {name: [] for name in self._names}
        waiting, width = self._waiting, len(self._given)
        count = self.rows - len(next(iter(self._columns.values())))
        if len(waiting) != count * width:
            raise ValueError(
                f"{count} rows have {len(waiting)} values, but {width} columns each: {', '.join(self._given)}"
            )
        places = {name: place for place, name in enumerate(self._given)}
        nothing = [None] * count
        for name, column in self._columns.items():
            place = places.get(name)
            column += nothing if place is None else waiting[place::width]
        self._waiting = []
