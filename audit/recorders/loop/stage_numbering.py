"""The ordinals of a run's stages: several pipelines in one run, and stages that a dataset's own code tells of.

Within one pipeline ordinals always grow from stage to stage, so that the largest is the last on the way to the model. A second
pipeline shares the ordinals of stages that are the same as far as that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from audit.recorders.stages.discover import Pipeline
from audit.records import Stage
from audit.store import wire as batch

_COLUMNS = ("path", "name", "qualname", "parameters", "random", "source_code_digest")


class StageRegister:
    """Gives out ordinals, and writes the rows of `stages` when a pipeline's first batch has come."""

    def __init__(self, run_id: str, submit: Callable[[dict[str, Any]], None]) -> None:
        self._run_id = run_id
        self._submit = submit
        self._ordinals: dict[str, list[int]] = {}
        self._next = 0
        self._pipelines: dict[int, Pipeline] = {}
        self._known: dict[int, dict[int, int]] = {}

    def add(self, key: int, pipeline: Pipeline) -> None:
        """A pipeline that will send rows under this key."""
        self._pipelines[key] = pipeline

    def ordinals(self, key: int, stages: Sequence[tuple[int, Stage]] = ()) -> dict[int, int] | None:
        """The run's ordinal for each of a worker's, where any differs. `stages` are the worker's, where it knows more."""
        if stages:
            self._known.setdefault(key, {})
            known = self._assign(list(stages), -1)
        else:
            if not self._known.get(key):
                self._known[key] = self._assign([(stage.stage, stage) for stage in self._pipelines[key].stages], -1)
            known = self._known[key]
        return None if all(own == given for own, given in known.items()) else known

    def write_rest(self) -> None:
        """Pipelines that never sent a batch are part of the run all the same."""
        for key in self._pipelines:
            if key not in self._known:
                self.ordinals(key)

    def _assign(self, order: list[tuple[int, Stage]], last: int) -> dict[int, int]:
        given: dict[int, int] = {}
        fresh: list[tuple[int, Stage]] = []
        for ordinal, stage in order:
            key = f"{stage.path}|{stage.qualname}|{stage.parameters}|{stage.source_code_digest}"
            taken = self._ordinals.setdefault(key, [])
            number = next((n for n in taken if n > last), None)
            if number is None:
                number = self._next
                self._next += 1
                taken.append(number)
                fresh.append((number, stage))
            given[ordinal] = last = number
        if fresh:
            columns: dict[str, Any] = {name: [getattr(stage, name) for _, stage in fresh] for name in _COLUMNS}
            columns |= {"run_id": [self._run_id] * len(fresh), "stage": [number for number, _ in fresh]}
            self._submit({"stages": batch.table_of("stages", columns)})
        return given
