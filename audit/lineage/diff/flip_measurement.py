"""Which of input and model flipped a prediction when both differ: each model is given both inputs.

Model A on B's input shows what the input alone does, model B on A's input what the model alone does. Inputs are made
again by replay and must have the digests that were recorded; models are the recorded checkpoints and must give the
recorded predictions. Where any of this fails the cause stays undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypedDict

from audit.class_names import identify_class
from audit.errors import AuditError
from audit.lineage.diff.matching import Side
from audit.store.read.reader import Reader
from audit.store.read.scratch import Scratch, TempTable

if TYPE_CHECKING:
    from audit.lineage.replay.model import ReplayModel

#: Each takes two passes through a pipeline and four calls of a model.
MOST_MEASURED = 1_000
_BATCH = 32

_WANTED_FLIPS = f"""
    SELECT index_a, visit_a, index_b, visit_b, flip, input_cause, predicted_a, predicted_b, label_b AS label,
           label_name_b AS label_name
    FROM {{compared}} WHERE cause = 'undetermined' AND predicted_a IS NOT NULL AND predicted_b IS NOT NULL
    ORDER BY flip = 'regression' DESC, index_b, visit_b LIMIT {MOST_MEASURED}
"""
_WRITE_CAUSES = """
    UPDATE {compared} p SET cause = m.cause
    FROM (SELECT unnest(?) AS index_a, unnest(?) AS visit_a, unnest(?) AS index_b, unnest(?) AS visit_b,
                 unnest(?) AS cause) m
    WHERE p.index_a = m.index_a AND p.visit_a = m.visit_a AND p.index_b = m.index_b AND p.visit_b = m.visit_b
"""


class UndeterminedFlip(TypedDict):
    """A flip whose input and model both differ."""

    index_a: int
    visit_a: int
    index_b: int
    visit_b: int
    flip: str
    input_cause: str
    predicted_a: int
    predicted_b: int
    label: int | None
    label_name: str | None


Key = tuple[int, int, int]


def measure_causes(
    reader: Reader, scratch: Scratch, compared: TempTable, a: Side, b: Side, *, trust: bool = False
) -> str | None:
    """Replace the cause `undetermined` in `compared` by what was measured; return a note on it, if there is one.

    Only flips that differ in input and model are measured, and only with both checkpoints at hand. Code of a recipe
    that this machine did not record runs only with `trust`.
    """
    if None in (a.run.model_digest, b.run.model_digest) or a.run.model_digest == b.run.model_digest:
        return None
    wanted = scratch.typed_rows(UndeterminedFlip, _WANTED_FLIPS.format(compared=compared))
    if not wanted:
        return None
    try:
        causes = list(_causes(reader, a, b, wanted, trust))
    except (AuditError, OSError, RuntimeError, TypeError, ValueError) as error:
        return f"Which of input and model flipped {len(wanted):,} predictions could not be measured: {error}"
    found = [(flip, cause) for flip, cause in causes if cause != "undetermined"]
    if found:
        rows = [(f["index_a"], f["visit_a"], f["index_b"], f["visit_b"], cause) for f, cause in found]
        scratch.change(_WRITE_CAUSES.format(compared=compared), [list(column) for column in zip(*rows, strict=True)])
    return (
        f"The cause of {len(found):,} of {len(wanted):,} flips was measured: each model was given the inputs of both "
        "runs."
    )


def _causes(
    reader: Reader, a: Side, b: Side, wanted: Sequence[UndeterminedFlip], trust: bool
) -> Iterator[tuple[UndeterminedFlip, str]]:
    models = [_model(reader, side, trust) for side in (a, b)]
    replays = [_Inputs(reader, side, trust) for side in (a, b)]
    for start in range(0, len(wanted), _BATCH):
        some = wanted[start : start + _BATCH]
        inputs = [
            replays[0].of([(a.epoch, flip["index_a"], flip["visit_a"]) for flip in some]),
            replays[1].of([(b.epoch, flip["index_b"], flip["visit_b"]) for flip in some]),
        ]
        ready = [n for n in range(len(some)) if inputs[0][n] is not None and inputs[1][n] is not None]
        if not ready:
            continue
        # said[model][input][flip]: what each model makes of the inputs of either run.
        said = [[model.predict([values[n] for n in ready]) for values in inputs] for model in models]
        for at, n in enumerate(ready):
            yield some[n], _cause(a, b, some[n], [[said[m][i][at] for i in (0, 1)] for m in (0, 1)])


def _cause(a: Side, b: Side, flip: UndeterminedFlip, said: list[list[int]]) -> str:
    """Return the cause of one flip; `said[m][i]` is the class that model m gives input i."""
    if said[0][0] != flip["predicted_a"] or said[1][1] != flip["predicted_b"]:
        # The models do not say what was recorded, so that nothing can be concluded from them.
        return "undetermined"
    by_input = _has_flipped(
        flip, identify_class(a.run.classes, said[0][1]), identify_class(a.run.classes, flip["predicted_a"])
    )
    by_model = _has_flipped(
        flip, identify_class(b.run.classes, said[1][0]), identify_class(a.run.classes, flip["predicted_a"])
    )
    if by_input == by_model:
        return "both"
    return "model" if by_model else str(flip["input_cause"])


def _has_flipped(flip: UndeterminedFlip, predicted: str | int | None, before: str | int | None) -> bool:
    if flip["flip"] == "change":
        return predicted != before
    label = flip["label"] if flip["label_name"] is None or isinstance(predicted, int) else flip["label_name"]
    is_right, is_fix = bool(predicted == label), bool(flip["flip"] == "fix")
    return is_right == is_fix


def _model(reader: Reader, side: Side, trust: bool) -> ReplayModel:
    # Only this needs torch.
    from audit.lineage.replay.model import ReplayModel

    model = ReplayModel(side.run, reader.location, None, trust=trust)
    if model.digest != side.run.model_digest:
        raise AuditError(f"the checkpoint of the run {side.run.run_id} has changed since it was recorded")
    return model


class _Inputs:
    """What a model was given in the visits of one run, made again."""

    def __init__(self, reader: Reader, side: Side, trust: bool) -> None:
        from audit.lineage.replay.pipeline import rebuild_pipeline
        from audit.lineage.replay.recorded_visits import RecordedVisits

        self._visits = RecordedVisits(reader, side.run.run_id)
        named = self._visits.find_named_stages()
        self._pipeline = rebuild_pipeline(side.run, reader.location, named=named, trust=trust)
        self._pipeline.keep_final = True
        self._paths = {ordinal: stage.path for ordinal, stage in self._visits.stages.items()}

    def of(self, keys: list[Key]) -> list[Any]:
        """Return the input of each visit; None where it is not what was recorded."""
        from audit.lineage.replay.pipeline import ReplayTask, replay_all

        made: dict[Key, Any] = {}
        for facts in self._visits.chunks(keys):
            states = {} if self._pipeline.seeded else self._visits.states(list(facts))
            places = {
                key: self._pipeline.place_of(key[1], fact["source"], fact["root"], states.get(key, {}))
                for key, fact in facts.items()
            }
            tasks = [ReplayTask(*key, states.get(key, {}), place) for key, place in places.items() if place is not None]
            with closing(replay_all(self._pipeline, tasks, workers=0)) as visits:
                for visit in visits:
                    key = (visit.task.epoch, visit.task.index, visit.task.visit)
                    if visit.digests == {self._paths[stage]: digest for stage, digest in facts[key]["stages"].items()}:
                        made[key] = visit.final
        return [made.get(key) for key in keys]
