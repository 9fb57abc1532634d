"""Every error that audit raises on purpose.

    AuditError                     exit code 1: the answer is no
    ├── UsageError                 2   the request itself makes no sense
    │   └── MissingExtra               an optional package is needed
    ├── StoreError                     the store cannot be opened, read or written
    │   ├── StoreNotFound          2   nothing is there
    │   ├── NotAStore              2   something else is there
    │   ├── StoreTooNew
    │   ├── StoreReadOnly
    │   ├── StoreDamaged
    │   └── StoreBusy                  another process is writing that run
    ├── NotFound                       a run or a sample that the store does not have
    ├── QueryError                     DuckDB refused the SQL; its message is carried
    ├── DatasetError                   what --dataset names cannot be used
    ├── PipelineError                  what --pipeline names cannot be used
    ├── ModelError                     what --model names cannot be used
    │   ├── NeedsTrust                 loading it would execute code from the file
    │   ├── UnknownArchitecture    2
    │   ├── ClassMismatch              class names of the checkpoint and the dataset disagree
    │   └── UnclearOutput              no class axis can be named without guessing
    ├── CodeNotTrusted                 code that a store names would be executed
    └── RecordingError                 recording went wrong (raised only when strict)

Domain code raises these with the facts as attributes; `cli.boundary` is the one place that
turns them into a sentence and an exit code. `hint` says what to do next.
"""

from __future__ import annotations

from typing import Self


class AuditError(Exception):
    """Something the user can act on: `message` says what and where, `hint` what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def as_usage(self) -> Self:
        """Return the same error with exit code 2: what the user named is not there."""
        self.exit_code = UsageError.exit_code
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries; keyword-only arguments would not survive the default.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[AuditError], args: tuple[object, ...], state: dict[str, object]) -> AuditError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


def message_without_hint(error: BaseException) -> str:
    """Return what happened, without what to do next: for where the hint was given already, or would mislead."""
    return error.message if isinstance(error, AuditError) else f"{type(error).__name__}: {error}"


class UsageError(AuditError):
    """The request itself makes no sense: a bad argument, option or configuration."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional package is needed for this."""

    def __init__(self, package: str, purpose: str, extra: str | None = None) -> None:
        wanted = f"audit-lineage[{extra}]" if extra else package
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed.",
            hint=f"Install it with: pip install '{wanted}'",
        )
        self.package = package


class StoreError(AuditError):
    """The store cannot be opened, read or written."""


class StoreNotFound(StoreError):
    """There is no store at that place."""

    exit_code = 2


class NotAStore(StoreError):
    """The place exists, but holds no audit store."""

    exit_code = 2


class StoreTooNew(StoreError):
    """The store was written in a format that this version does not know."""


class StoreReadOnly(StoreError):
    """The store cannot be written."""


class StoreDamaged(StoreError):
    """A committed file is missing, or is not what its manifest says."""

    #: The run whose manifest is missing, where that is the damage.
    lost_run: str | None = None


class StoreBusy(StoreError):
    """Another process is writing that run."""


class NotFound(AuditError):
    """The store has no such run, sample or stage."""


class QueryError(AuditError):
    """DuckDB refused the SQL; the message is DuckDB's own."""


class DatasetError(AuditError):
    """What --dataset names cannot be used."""


class PipelineError(AuditError):
    """What --pipeline names cannot be used."""


class ModelError(AuditError):
    """What --model names cannot be used."""


class NeedsTrust(ModelError):
    """Loading this file would execute code that it contains."""


class CodeNotTrusted(AuditError):
    """Code that a store names would be executed, and nothing shows that this machine or its user recorded the run."""

    def __init__(self, message: str, *, hint: str | None = None, files: list[str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.files = files or []


class UnknownArchitecture(ModelError):
    """The weights fit no architecture that is known here."""

    exit_code = 2


class ClassMismatch(ModelError):
    """The class names of the checkpoint and of the dataset disagree."""


class UnclearOutput(ModelError):
    """The model's output has no axis that is the class axis beyond doubt."""


class RecordingError(AuditError):
    """Recording went wrong; raised into the loop only when strict."""
