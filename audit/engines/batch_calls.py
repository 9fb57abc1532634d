"""Calls a model for a batch, so that a sample which it cannot take fails alone.

A batch that the model cannot take is given to it once more, sample by sample. Only what was returned then is recorded. If it
takes each of them alone, no sample is to blame: then the run ends with the error of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from audit.errors import ModelError
from audit.recorders.envelope import RecordedBatch
from audit.recorders.visit.error_text import describe_error
from audit.records import MODEL_STAGE

#: If no sample was taken before, and so many failed one by one, the model does not fit the pipeline.
_MOST_AT_FIRST = 8


class AnsweredCall(NamedTuple):
    """What the model returned for some samples of a batch, by their places among those that did not fail."""

    first: int
    samples: int
    output: Any


class SampleCalls:
    """Calls one model."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call
        #: Whether it took a sample so far, and how many it did not take before it did.
        self._has_taken = False
        self._failed = 0
        #: How many samples the run has; 0 where that is not known.
        self.total = 0

    def make(self, fetched: RecordedBatch) -> list[AnsweredCall]:
        """Return the calls of a batch. Samples that the model cannot take have failed then. Raises ModelError if it takes none at all."""
        calls: list[AnsweredCall] = []
        errors: dict[int, ModelError] = {}
        raised: list[ModelError] = []
        for first, count, value in _split_into_calls(fetched):
            try:
                calls.append(AnsweredCall(first, count, self._call(value)))
            except ModelError as error:
                rows = list(_rows_of(value, count)) if count > 1 else []
                alone = {first: error} if count == 1 else self._call_each(first, rows, calls)
                if not alone:
                    raise  # it cannot be found out which sample is to blame, or none is
                errors |= alone
                raised.append(error)
        self._has_taken = self._has_taken or bool(calls)
        if errors:
            self._check(raised[0], len(errors), len(fetched.ok))
            calls = _renumber(calls, errors)
            _fail(fetched, errors)
        return calls

    def _call_each(self, first: int, rows: list[Any], calls: list[AnsweredCall]) -> dict[int, ModelError]:
        errors: dict[int, ModelError] = {}
        for place, row in enumerate(rows, first):
            try:
                calls.append(AnsweredCall(place, 1, self._call(row)))
            except ModelError as error:
                errors[place] = error
        return errors

    def _check(self, error: ModelError, failed: int, count: int) -> None:
        """Raise the error where no sample was taken so far, and it is not one sample that is to blame."""
        self._failed += failed
        if not self._has_taken and (count > 1 or self.total == 1 or self._failed >= _MOST_AT_FIRST):
            raise error


def _split_into_calls(fetched: RecordedBatch) -> list[tuple[int, int, Any]]:
    """Return what the model is given, call by call: the place of the first sample, how many these are, and the input."""
    inputs = fetched.data
    if isinstance(inputs, list) and all(isinstance(value, torch.Tensor) for value in inputs):
        # Samples of different shapes cannot share a batch: each goes alone.
        return [(place, 1, value[None]) for place, value in enumerate(inputs)]
    return [(0, len(fetched.ok), inputs)]


def _rows_of(value: Any, count: int) -> Iterator[Any]:
    """Yield the input of each sample; nothing where it cannot be split."""
    if isinstance(value, (torch.Tensor, list)) and len(value) == count:
        yield from (value[place : place + 1] for place in range(count))
    elif isinstance(value, Mapping) and all(
        isinstance(one, torch.Tensor) and len(one) == count for one in value.values()
    ):
        yield from ({key: one[place : place + 1] for key, one in value.items()} for place in range(count))


def _renumber(calls: list[AnsweredCall], errors: Mapping[int, ModelError]) -> list[AnsweredCall]:
    return [call._replace(first=call.first - sum(place < call.first for place in errors)) for call in calls]


def _fail(fetched: RecordedBatch, errors: Mapping[int, ModelError]) -> None:
    """Take the samples at some places, among those that did not fail, for failed."""
    for place, error in errors.items():
        position = fetched.ok[place]
        text = fetched.failed_at_model[position] = describe_error(error.__cause__ or error)
        fetched.failures.append(f"Sample {fetched.indices[position]} failed at {MODEL_STAGE}: {text}")
    kept = [place for place in range(len(fetched.ok)) if place not in errors]
    if isinstance(fetched.data, (list, tuple)):
        fetched.data = [fetched.data[place] for place in kept]
    elif isinstance(fetched.data, torch.Tensor):
        fetched.data = fetched.data[kept]
    elif isinstance(fetched.data, Mapping):
        fetched.data = {key: one[kept] for key, one in fetched.data.items()}
    fetched.ok = [fetched.ok[place] for place in kept]
