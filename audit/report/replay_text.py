"""A replay's verdict for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from audit.lineage.replay.result import MOST_LISTED, Replay
from audit.report.clean_text import clean

_MOST_SHOWN = 20


def replay_summary(result: Replay) -> RenderableType:
    """Return how much is identical, and each visit that is not, with the first stage that differs and why."""
    colour = "bold green" if 0 < result.checked == result.identical else "bold red"
    lines = [
        Text.assemble(
            (f"{result.identical:,} of {result.checked:,} visits identical", colour),
            f"  ({result.stage_outputs:,} stage outputs compared, run {result.run_id})",
        )
    ]
    for item in result.different[:_MOST_SHOWN]:
        stage = f"stage {item.stage} {clean(item.name)}" if item.stage is not None else clean(item.name)
        distance = f", by up to {item.max_abs_diff:.4g}" if item.max_abs_diff is not None else ""
        lines.append(
            Text.assemble(
                (f"  {item.index}", "bold"),
                f"  {clean(item.source)}  first differs at {stage}{distance}: ",
                (item.reason, "red"),
                f" — {clean(item.detail)}",
            )
        )
    if (more := result.checked - result.identical - _MOST_SHOWN) > 0:
        listed = f"the first {MOST_LISTED:,}" if more + _MOST_SHOWN > MOST_LISTED else "them"
        lines.append(Text(f"  … and {more:,} more (--json lists {listed})"))
    if result.not_compared:
        named = ", ".join(f"{clean(name)}: {count:,}" for name, count in result.not_compared.items())
        lines.append(
            Text(
                f"  not compared, made from whole batches, without a digest, or kept by the dataset from an earlier visit: {named}",
                "yellow",
            )
        )
    if (model := result.model) is not None:
        verdict = "logits agree" if not model.beyond else f"{len(model.beyond):,} logits differ"
        lines.append(
            Text.assemble(
                (verdict, "bold green" if not model.beyond else "bold red"),
                f"  ({model.compared:,} compared, largest difference {model.max_abs_diff:.3g}, tolerance "
                f"{model.tolerance:g}; the checkpoint is {model.checkpoint})",
            )
        )
    return Group(*lines)
