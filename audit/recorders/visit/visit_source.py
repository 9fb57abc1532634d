"""What a visit notes of its source: the bytes that were read, the decoded value of stage 0, and where the sample failed."""

from __future__ import annotations

import functools
import hashlib
from time import perf_counter_ns
from typing import Any

from audit import values
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.planned_stage import stage_plan
from audit.recorders.visit.visit_outputs import CaptureOrVerify, VisitOutputs
from audit.values import native as loops

#: A file of at most so many bytes is hashed after its visit, together with others.
HASHED_LATER = 2**20


@functools.cache
def _load_plan() -> tuple[Any, ...]:
    """Return what the compiled way to note stage 0 must know; `note_loaded` is the other way."""
    return stage_plan(VisitSource.note_loaded, 0, "load")


class VisitSource(VisitOutputs):
    """Collects what is known of a sample's source."""

    # What most visits leave as it is.
    _load: Any = None
    failed_stage: str | None = None
    error: str | None = None
    _source_digest: str | None = None
    source_bytes: int | None = None
    #: The file that was hashed, where its path was seen.
    source_path: str | None = None
    #: Whether more files were read, which are not hashed meanwhile.
    has_further_sources = False
    #: A file's bytes that are not hashed yet.
    _source_data: bytes | None = None

    def __init__(self, level: CaptureOrVerify) -> None:
        self._level = level
        self.rows = {}
        #: Files that were opened for reading while the item was made.
        self.opened: list[str] = []

    def read(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the bytes of the source file, hashed as they are read."""
        try:
            data = target(*args, **kwargs)
        except BaseException as error:
            self.fail("load", error)
            raise
        self.hash_source(data)
        return data

    def hash_source(self, data: bytes, path: str | None = None) -> None:
        """Note the digest of exactly the buffer that is decoded; of several files, the first one's.

        Those of all but large files are hashed when the visit's rows are made, two at a time: between the stages of a sample
        hashing a small one takes several times as long.
        """
        if self.source_bytes is not None:
            self.has_further_sources = True
            return
        size = self.source_bytes = len(data)
        self.source_path = path
        if size <= HASHED_LATER and type(data) is bytes:
            self._source_digest, self._source_data = None, data
        else:
            self.source_digest = hashlib.sha256(data).hexdigest()

    @property
    def source_digest(self) -> str | None:
        """The SHA-256 of the source's bytes; None where they were not seen."""
        if self._source_data is not None:
            self.source_digest = hashlib.sha256(self._source_data).hexdigest()
        return self._source_digest

    @source_digest.setter
    def source_digest(self, digest: str | None) -> None:
        self._source_digest, self._source_data = digest, None

    def load(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Stage 0: the decoded source."""
        begun = perf_counter_ns()
        try:
            value = target(*args, **kwargs)
        except BaseException as error:
            self.fail_load("load", error)
            raise
        if 0 in self.rows:
            self.note_loaded_again(value, perf_counter_ns() - begun)
        else:
            self.note_loaded(value, perf_counter_ns() - begun)
        return value

    def note_loaded_again(self, value: Any, nanoseconds: int) -> None:
        """Note a further file that was decoded for the same sample, such as the second of a pair."""
        raise NotImplementedError

    def note_loaded(self, value: Any, nanoseconds: int = 0) -> None:
        """Note stage 0."""
        if len(self.opened) > 1 and (name := getattr(value, "filename", None)) in self.opened:
            # Of several pictures, such as a mask and an image, the source is the one that was loaded.
            self.opened.remove(name)
            self.opened.insert(0, name)
        if loops.native is not None and loops.native.note_load(_load_plan(), self, value, nanoseconds):
            return
        self._load = value
        self._note(0, value, None, nanoseconds, None)

    def _note_loaded_target(self, value: tuple[Any, ...]) -> None:
        """Note the target that the first joint stage is given beside the picture that was loaded."""
        if value and value[0] is self._load:
            self.rows[0].target = values.describe_target(value)

    def take_load(self) -> Any:
        """Return the value of stage 0, and let go of it."""
        value, self._load = self._load, None
        return value

    def fail(self, stage: str, error: BaseException) -> None:
        """Note where the sample failed; the innermost stage is the one that is noted."""
        if self.error is None:
            self.failed_stage = stage
            self.error = describe_error(error)

    def fail_load(self, stage: str, error: BaseException) -> None:
        """Note that the source could not be decoded."""
        self.fail(stage, error)
        if self.source_path is not None:
            # The dataset may read another file instead.
            self.source_digest = self.source_bytes = self.source_path = None

    def recover(self) -> None:
        """Forget an error that the dataset's own code has caught: it gave an item all the same."""
        self.failed_stage = self.error = None
