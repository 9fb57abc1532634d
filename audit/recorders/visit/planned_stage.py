"""What a visit asks of each stage of its pipeline, looked up once for each process instead of once for each sample."""

from __future__ import annotations

from audit.recorders.stages.discover import PipelineStep


class PlannedStage:
    """One stage of a pipeline as visits run it."""

    __slots__ = ("draws", "is_container", "is_target", "name", "ordinal", "path", "step", "target")

    def __init__(self, step: PipelineStep) -> None:
        stage = step.stage
        self.step = step
        self.target = step.target
        self.ordinal = stage.stage
        self.name = stage.name
        self.path = stage.path
        self.is_target = stage.is_target
        self.is_container = bool(step.children)
        #: Whether it may show what it drew.
        self.draws = stage.random and not step.children
