"""Stages that are found by the calls of a dataset, which a run on Ray does not record: its processes could not number them alike."""

from __future__ import annotations

from audit.engines.assemble import Assembly
from audit.models.presets import expand_preset
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.seeded_dataset import RecordedDataset
from audit.recorders.stages.discover import find_pipeline


def describe_unobserved(assembly: Assembly, index: int, seed: int) -> list[str]:
    """Make one sample with its calls observed, and say which of its stages the run will not have."""
    dataset, known = assembly.dataset, {stage.path for stage in assembly.pipeline.stages}
    try:
        pipeline = find_pipeline(dataset, expand=expand_preset, observe_calls=True)
        recorded = RecordedDataset(dataset, pipeline, level=CaptureLevel("digest"), seed=seed, want_inputs=False)
        stages = [stage for _, stage in recorded.__getitems__([index]).stages]
    except Exception:
        # The run itself says what is wrong with the sample.
        return []
    unknown = [stage for stage in stages if stage.path not in known and not stage.path.startswith("inside.")]
    missing = [f"{stage.name} ({stage.path})" for stage in unknown]
    if not missing:
        return []
    return [
        f"{type(dataset).__name__}: the stages {', '.join(missing)}, which are found by their calls: --engine ray does not "
        "record them, --engine local does"
    ]
