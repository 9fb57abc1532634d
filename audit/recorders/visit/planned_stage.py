"""What a visit asks of each stage of its pipeline, looked up once for each process instead of once for each sample."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from audit import values
from audit.models.presets import ConvertRGB
from audit.recorders.activity import note_of
from audit.recorders.stages.discover import PipelineStep
from audit.recorders.visit.stage_row import Row


class PlannedStage:
    """One stage of a pipeline as visits run it."""

    __slots__ = ("draws", "is_container", "is_target", "name", "note", "ordinal", "path", "step", "target")

    def __init__(self, step: PipelineStep) -> None:
        stage = step.stage
        self.step = step
        self.target = step.target
        self.ordinal = stage.stage
        self.name = stage.name
        self.path = stage.path
        self.note = note_of(stage.name)
        self.is_target = stage.is_target
        self.is_container = bool(step.children)
        #: Whether it may show what it drew.
        self.draws = stage.random and not step.children

    def compile(self, slow: Callable[..., Any], single: set[type]) -> tuple[Any, ...] | None:
        """Return what the compiled way of a stage must know, in its order; None for a stage that it does not know.

        `slow` is the way of every stage, `single` the types whose values hold no other values.
        """
        if self.is_target or self.is_container or self.draws:
            return None
        keeps = type(self.target) is ConvertRGB
        return stage_plan(slow, self.ordinal, self.name, self.note, single, keeps_pixels=keeps)


def stage_plan(
    slow: Callable[..., Any],
    ordinal: int,
    name: str,
    note: bytes = b"",
    single: Set[type] = frozenset(),
    *,
    keeps_pixels: bool = False,
) -> tuple[Any, ...]:
    """Return what is the same for every call of a stage, in the order of values/_stage.h.

    `keeps_pixels` says that the stage never changes a picture in place: where its output has the memory of its input, both
    have one content.
    """
    tensor, image = values.KINDS.get("tensor"), values.KINDS.get("image")
    kinds = (values.known_kinds(), tensor, values.torch_names(), image, values.pillow_names())
    return (slow, ordinal, name, note, Row, single, *kinds, keeps_pixels)
