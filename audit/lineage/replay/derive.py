"""One visit's stage outputs, derived again from the source: the exact values, or an error that says which differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from audit import values
from audit.errors import AuditError, NotFound
from audit.lineage.replay.pipeline import ReplayedVisit, ReplayPipeline, ReplayTask, replay_all
from audit.lineage.replay.repeated_calls import count_calls
from audit.recorders.randomness.generator_states import GeneratorState
from audit.records import is_batch_stage
from audit.tables import SampleRow

if TYPE_CHECKING:
    from audit.lineage.trace import TracedStage


def derive(
    what: ReplayPipeline, sample: SampleRow, stages: Sequence[TracedStage], states: Mapping[str, GeneratorState]
) -> dict[int, Any]:
    """Return every stage's output of one visit; each must have its recorded digest.

    `stages` are the visit's recorded outputs with the paths of their stages, `states` those of the generators it drew from.
    """
    calls = {str(row["path"]): count for row in stages if (count := count_calls(row["params"])) > 1}
    outcome = _replay_visit(what, sample, states).with_last_calls(calls, {str(row["path"]) for row in stages})
    found: dict[int, Any] = {}
    for recorded in stages:
        stage, path = recorded["stage"], str(recorded["path"])
        if is_batch_stage(path):
            continue
        exact = outcome.exact.get(path)
        if exact is None:
            why = outcome.error or "the pipeline no longer has this stage"
            raise NotFound(f"Stage {stage} of sample {sample['index']} could not be recomputed: {why}.")
        if outcome.digests[path] != recorded["digest"]:
            raise AuditError(
                f"Stage {stage} of sample {sample['index']} no longer gives what was recorded "
                f"(digest {outcome.digests[path]}, recorded {recorded['digest']}).",
                hint=f"Run `audit replay {sample['run_id']} {sample['index']}` to see why.",
            )
        found[stage] = values.decode(*exact, allow_pickle=True)
    return found


def _replay_visit(what: ReplayPipeline, sample: SampleRow, states: Mapping[str, GeneratorState]) -> ReplayedVisit:
    place = what.place_of(sample["index"], sample["source"], sample["root"], states)
    if place is None:
        raise NotFound(
            f"Sample {sample['index']} cannot be recomputed: the dataset no longer has {sample['source']}.",
            hint="Put it back; or record with --capture full, which keeps every output.",
        )
    what.level = "full"
    task = ReplayTask(sample["epoch"], sample["index"], sample["visit"], dict(states), place)
    (outcome,) = replay_all(what, [task], workers=0)
    return outcome
