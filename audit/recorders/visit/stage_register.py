"""The ordinals of a run's stages: several pipelines in one run, and stages that a dataset's own code names.

Within one pipeline ordinals always grow from stage to stage, so that the largest is the last on the way to the model. A second
pipeline shares the ordinals of stages that are the same as far as that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from audit.recorders.stages.discover import Pipeline
from audit.records import Stage
from audit.store import wire as batch

_COLUMNS = ("path", "name", "qualname", "parameters", "random", "source_code_digest")


class StageOrdinals(Protocol):
    """Gives the run's ordinals of stages to those who write rows."""

    def ordinals(self, key: int, stages: Sequence[tuple[int, Stage]] = ()) -> dict[int, int] | None: ...
    def take_rows(self) -> Any: ...


class StageRegister:
    """Gives out ordinals. The rows of `stages` are made when a pipeline's first batch has come: `take_rows` gives them."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._ordinals: dict[str, list[int]] = {}
        self._next = 0
        self._pipelines: dict[int, Pipeline] = {}
        #: By a pipeline's key, the run's ordinal for each of a worker's.
        self._known: dict[int, dict[int, int]] = {}
        self._fresh: dict[int, Stage] = {}

    def add(self, key: int, pipeline: Pipeline) -> None:
        """Add a pipeline that will send rows under this key."""
        self._pipelines[key] = pipeline

    def ordinals(self, key: int, stages: Sequence[tuple[int, Stage]] = ()) -> dict[int, int] | None:
        """Return the run's ordinal for each of a worker's, where any differs. `stages` are the worker's, where it knows more."""
        if stages:
            self._known.setdefault(key, {})
            known = self._assign(stages)
        else:
            if not self._known.get(key):
                self._known[key] = self._assign([(stage.stage, stage) for stage in self._pipelines[key].stages])
            known = self._known[key]
        return None if all(own == given for own, given in known.items()) else known

    def append(self, stage: Stage, last: int | None) -> int:
        """Return an ordinal for a stage that follows the one with the ordinal `last`; all known ones where that is None."""
        after = self._next - 1 if last is None else last
        return self._assign([(0, stage)], after)[0]

    def restore(self, stored: Sequence[Stage]) -> None:
        """Take the ordinals of a run that is resumed."""
        for stage in sorted(stored, key=lambda stage: stage.stage):
            self._ordinals.setdefault(_identity(stage), []).append(stage.stage)
        self._next = max((stage.stage for stage in stored), default=-1) + 1

    def register_rest(self) -> None:
        """Register the pipelines that never sent a batch: they are part of the run, too."""
        for key in self._pipelines:
            if key not in self._known:
                self.ordinals(key)

    def take_rows(self) -> Any:
        """Return the rows of `stages` that were registered since the last call; None when there are none."""
        fresh, self._fresh = self._fresh, {}
        return stage_rows(self._run_id, fresh) if fresh else None

    def _assign(self, stages: Sequence[tuple[int, Stage]], last: int = -1) -> dict[int, int]:
        """Return ordinals that grow from stage to stage; those of the same stages elsewhere in the run as far as that holds."""
        given: dict[int, int] = {}
        for own, stage in stages:
            taken = self._ordinals.setdefault(_identity(stage), [])
            number = next((n for n in taken if n > last), None)
            if number is None:
                number = self._next
                self._next += 1
                taken.append(number)
                self._fresh[number] = stage
            given[own] = last = number
        return given


def stage_rows(run_id: str, stages: Mapping[int, Stage]) -> Any:
    """Return the rows of `stages`, by ordinal."""
    columns: dict[str, Any] = {name: [getattr(stage, name) for stage in stages.values()] for name in _COLUMNS}
    return batch.table_of("stages", columns | {"run_id": [run_id] * len(stages), "stage": list(stages)})


def _identity(stage: Stage) -> str:
    return f"{stage.path}|{stage.qualname}|{stage.parameters}|{stage.source_code_digest}"
