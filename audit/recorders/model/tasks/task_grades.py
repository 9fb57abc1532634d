"""Makes the rows of a call's output that is boxes, masks or tokens, and says which targets do not fit it."""

from __future__ import annotations

from dataclasses import replace

from audit.metrics.boxes import Boxes
from audit.models.task_outputs import DetectorOutput, MaskOutput, TaskOutput, TokenOutput, is_mask
from audit.recorders.model.tasks.box_rows import add_boxes
from audit.recorders.model.tasks.mask_rows import add_masks, as_mask
from audit.recorders.model.tasks.task_rows import TaskContext, TaskRows
from audit.recorders.model.tasks.token_rows import add_tokens, is_sequence


def make_task_rows(output: TaskOutput, context: TaskContext) -> TaskRows:
    """Return the rows of a call's output."""
    rows = TaskRows()
    if isinstance(output, MaskOutput):
        context = replace(context, targets=list(map(as_mask, context.targets)))
    losses: list[float | None] = [None] * len(context.inputs)
    for sample, place in enumerate(context.inputs):
        if isinstance(output, DetectorOutput):
            add_boxes(rows, sample, output.pictures[place], context)
        elif isinstance(output, MaskOutput):
            losses[sample] = add_masks(rows, sample, output.scores[place], context, has_loss=output.has_loss)
        elif isinstance(output, TokenOutput):
            losses[sample] = add_tokens(rows, sample, output.scores[place], context)
    rows.columns["loss"] = losses
    if _has_other_targets(output, context):
        rows.mark(f"A target is not {_TARGETS[output.kind]}: such samples are recorded and not graded.")
    return rows


#: What the target of each task is.
_TARGETS = {
    "boxes": "a dict with boxes and labels, or a list of annotations",
    "masks": "a mask of whole numbers",
    "tokens": "a sequence of whole numbers",
}


def _has_other_targets(output: TaskOutput, context: TaskContext) -> bool:
    """Return whether a sample has a target of another task, or none while others of its batch have one."""
    fits = {"boxes": lambda one: isinstance(one, Boxes), "masks": is_mask, "tokens": is_sequence}[output.kind]
    others = [target for target in context.targets if not fits(target)]
    is_known = len(others) < len(context.targets) or any(label is not None for label in context.labels)
    return any(target is not None for target in others) or (bool(others) and is_known)
