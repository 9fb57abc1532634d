"""One visit, from its source file through every stage to the prediction."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from audit import plainjson, values
from audit.display import PrintableView
from audit.errors import NeedsTrust, NotFound, StoreDamaged, StoreError, UsageError
from audit.lineage.replay.recorded_visits import RecordedVisits
from audit.lineage.source_state import SourceState, SourceStates, compare_source, read_recorded_source, source_path
from audit.lineage.stage_overlays import StageOverlay, export_overlays, stage_overlays
from audit.output_file import explain_write_errors
from audit.plainjson import JsonObject
from audit.records import Run, is_batch_stage
from audit.sources.contact import allow_sources
from audit.sources.files import to_printable
from audit.store.read.reader import Reader
from audit.tables import (
    ActivationRow,
    BoxRow,
    MaskRow,
    MaskScoreRow,
    OutputRow,
    PayloadRow,
    PredictionRow,
    SampleRow,
    SampleSourceRow,
    StageOutputRow,
    TokenRow,
)

#: What `audit trace --json` shows of a prediction and of a stage: scripts rely on these names.
_PREDICTION = (
    *("predicted", "predicted_name", "confidence", "correct", "loss", "logits", "probabilities"),
    *("model", "call", "operations", "target", "output", "head", "label", "label_name"),
)
_STAGE = ("stage", "path", "name", "kind", "dtype", "shape", "digest", "changed", "params", "min", "max", "mean", "std")


class TracedStage(StageOutputRow):
    """A stage's output, with the path of the stage; None where the run does not list the stage."""

    path: str | None


@dataclass
class Trace(PrintableView):
    """Everything that was recorded of one visit. Made by `Store.trace`."""

    reader: Reader
    run: Run
    sample: SampleRow
    stages: list[TracedStage]
    #: The prediction that is graded: the first of the first recorded model.
    prediction: PredictionRow | None
    activations: list[ActivationRow] = field(default_factory=list)
    #: Whether code that the store names may run to recompute what was not stored, even if another machine recorded it.
    trust: bool = False
    #: Predictions of other models, and of later calls.
    other_predictions: list[PredictionRow] = field(default_factory=list)
    #: All files that the sample was read from, as rows of `sample_sources`.
    sources: list[SampleSourceRow] = field(default_factory=list)

    @cached_property
    def source_path(self) -> bytes | None:
        """Where the source file is, as the file system spells it; None for a sample without a file."""
        return source_path(self.sample)

    @cached_property
    def source_state(self) -> SourceState | None:
        """Whether the file still is what was recorded; None for a sample without a file, or if no digest was recorded."""
        self._allow_sources()
        return compare_source(self.sample, self.sample["source_digest"], self.sample["source_bytes"])[0]

    @cached_property
    def source_states(self) -> list[SourceState | None]:
        """Whether each of the sample's files still is what was recorded."""
        self._allow_sources()
        states = SourceStates()
        return [states.of(row) for row in self.sources]

    def read_source(self) -> bytes:
        """Return the bytes of the source file, if they are those that were recorded; OSError otherwise."""
        self._allow_sources()
        return read_recorded_source(self.sample, self.sample["source_digest"])

    def _allow_sources(self) -> None:
        allow_sources(self.run, self.reader.location, trust=self.trust, root=self.sample["root"])

    @cached_property
    def boxes(self) -> list[BoxRow]:
        """The boxes of the graded prediction: targets first, then predicted ones."""
        key = self.sample
        rows = self.reader.rows(BoxRow, self.run.run_id, index=key["index"], where=self._graded_condition)
        return sorted(rows, key=lambda row: (row["kind"] != "target", row["box"]))

    @cached_property
    def masks(self) -> list[MaskRow]:
        """The target and the predicted mask of the graded prediction."""
        return self.reader.rows(MaskRow, self.run.run_id, index=self.sample["index"], where=self._graded_condition)

    @cached_property
    def mask_scores(self) -> list[MaskScoreRow]:
        """How well each class of the graded mask was found."""
        if self.run.task != "segmentation":
            return []
        return self.reader.rows(
            MaskScoreRow, self.run.run_id, index=self.sample["index"], where=self._graded_condition, order="class"
        )

    @cached_property
    def tokens(self) -> list[TokenRow]:
        """The tokens of the graded prediction, in their order."""
        if self.run.task != "tokens":
            return []
        return self.reader.rows(
            TokenRow, self.run.run_id, index=self.sample["index"], where=self._graded_condition, order="position"
        )

    @cached_property
    def outputs(self) -> list[OutputRow]:
        """What a model with several outputs returned: first the values of this visit, then those that belong to a whole call."""
        key = self.sample
        visit = f"epoch = {key['epoch']} AND visit = {key['visit']}"
        own = self.reader.rows(OutputRow, self.run.run_id, index=key["index"], where=visit, order="call, port")
        if any(row["axis"] is None for row in own):
            # An output whose first axis only happened to be as long as the batch, as later calls showed, does not belong to the sample.
            query = "SELECT DISTINCT model, port FROM outputs WHERE run_id = ? AND axis = 'other'"
            others = set(self.reader.sql(query, parameters=[self.run.run_id]).fetchall())
            own = [row for row in own if row["axis"] is not None or (row["model"], row["port"]) not in others]
        numbers = sorted({row["number"] for row in own if row["number"] is not None} | self._call_numbers)
        if not numbers:
            return own
        listed = ", ".join(map(str, numbers))
        where = f"index IS NULL AND number IN ({listed})"
        return own + self.reader.rows(OutputRow, self.run.run_id, where=where, order="number, port")

    @property
    def _call_numbers(self) -> set[int]:
        made = [*([self.prediction] if self.prediction else []), *self.other_predictions]
        return {row["number"] for row in made if row["number"] is not None}

    def output(self, port: str, *, model: str | None = None, call: int | None = None) -> Any:
        """Return the exact value that a model returned for this visit at a port, as stored; its digest is checked.

        Where several calls have the port, the first is taken, unless `model` or `call` chooses another. Raises NotFound if the value was
        not stored; capture level `full` stores it.
        """
        found = [row for row in self.outputs if row["port"] == port and model in (None, row["model"])]
        rows = [row for row in found if call in (None, row["call"])]
        if not rows:
            known = ", ".join(dict.fromkeys(row["port"] for row in self.outputs)) or "none"
            raise NotFound(f"Sample {self.sample['index']} has no output {port}.", hint=f"Its outputs: {known}.")
        return self._output_value(rows[0])

    def _output_value(self, row: OutputRow) -> Any:
        if row["form"] != "full" or row["encoding"] is None or row["data"] is None:
            raise NotFound(
                f"The output {row['port']} of sample {self.sample['index']} was not stored.",
                hint='Record with capture="full" to keep every output.',
            )
        encoded = values.EncodedValue(row["encoding"], row["data"])
        value = values.decode("tensor", encoded)
        with values.following_digests(self.run.digest_version):
            digest = values.encoded_digest("tensor", encoded)
        if row["digest"] is not None and digest != row["digest"]:
            raise StoreDamaged(
                f"The stored output {row['port']} of sample {self.sample['index']} does not have its digest.",
                hint="See what is damaged with: audit store verify",
            )
        return value

    @cached_property
    def overlays(self) -> list[StageOverlay]:
        """The boxes and masks at each stage, in the pixels of that stage's picture, as far as they are stored."""
        return stage_overlays(self)

    @property
    def _graded_condition(self) -> str:
        return f"epoch = {self.sample['epoch']} AND visit = {self.sample['visit']} AND call = 0"

    @cached_property
    def _payloads(self) -> dict[tuple[int, str], PayloadRow]:
        key = self.sample
        where = f"epoch = {key['epoch']} AND visit = {key['visit']}"
        rows = self.reader.rows(PayloadRow, self.run.run_id, index=key["index"], where=where)
        return {(row["stage"], row["form"]): row for row in rows}

    def _payload(self, stage: int, form: str) -> PayloadRow | None:
        """Return the payload of a stage, or None.

        A stage that changed nothing shares the payload of the last stage before it that changed the value.
        """
        digest = next((row["digest"] for row in self.stages if row["stage"] == stage), None)
        for row in reversed([row for row in self.stages if row["stage"] <= stage]):
            if row["digest"] == digest and (found := self._payloads.get((row["stage"], form))) is not None:
                return found
        return None

    def is_stored(self, stage: int) -> bool:
        """Return whether the exact output of a stage lies in the store."""
        return self._payload(stage, "full") is not None

    def preview(self, stage: int) -> values.Preview | None:
        """Return the small picture or excerpt that was stored of a stage's output."""
        found = self._payload(stage, "preview")
        return values.Preview(found["encoding"], found["data"]) if found else None

    def value(self, stage: int, *, numpy_only: bool = False, allow_pickle: bool = False) -> Any:
        """Return the exact output of a stage: as stored, else derived again from the source; its digest is checked.

        Deriving runs the recorded pipeline: CodeNotTrusted unless this machine recorded it, or `trust` is set.
        `allow_pickle=True` also loads objects of unknown classes, which are stored as pickles: a pickle can execute code.
        """
        row = next((row for row in self.stages if row["stage"] == stage), None)
        if row is None:
            raise NotFound(f"Sample {self.sample['index']} has no output of stage {stage}.")
        found = self._payload(stage, "full")
        if found is None and is_batch_stage(str(row["path"])):
            raise NotFound(
                f"Stage {stage} ({row['name']}) of sample {self.sample['index']} was made from a whole batch and was not stored: "
                "it cannot be derived from one sample.",
                hint='Record with capture="full" to keep every output.',
            )
        if found is None:
            return self._derive_value[stage]
        encoded = self._self_contained(values.EncodedValue(found["encoding"], found["data"]), stage, allow_pickle)
        value = values.decode(found["kind"], encoded, numpy_only=numpy_only, allow_pickle=allow_pickle)
        with values.following_digests(self.run.digest_version):
            digest = None if numpy_only else values.encoded_digest(found["kind"], encoded)
        if digest is not None and row["digest"] is not None and digest != row["digest"]:
            raise StoreDamaged(
                f"The stored output of stage {stage} of sample {self.sample['index']} does not have its digest.",
                hint="See what is damaged with: audit store verify",
            )
        return value

    def _self_contained(self, encoded: values.EncodedValue, stage: int, allow_pickle: bool) -> values.EncodedValue:
        """Return the value itself: if it was stored as a function of an earlier stage's picture, compute it from that picture."""
        digest = values.source_digest(encoded)
        if digest is None:
            return encoded
        earlier = [row["stage"] for row in self.stages if row["digest"] == digest and row["stage"] != stage]
        stored = next((number for number in earlier if self.is_stored(number)), None)
        if stored is None:
            raise StoreDamaged(
                f"The output of stage {stage} of sample {self.sample['index']} is stored as a function of a picture that is missing.",
                hint="See what is damaged with: audit store verify",
            )
        return values.expand(encoded, self.value(stored, allow_pickle=allow_pickle))

    @cached_property
    def _derive_value(self) -> Mapping[int, Any]:
        from audit.lineage.replay.derive import derive
        from audit.lineage.replay.pipeline import rebuild_pipeline

        visits = RecordedVisits(self.reader, self.run.run_id)
        what = rebuild_pipeline(
            self.run,
            self.reader.location,
            named=visits.find_named_stages(),
            split=self.sample["split"],
            trust=self.trust,
        )
        key = (self.sample["epoch"], self.sample["index"], self.sample["visit"])
        states = {} if what.seeded else visits.states([key]).get(key, {})
        return derive(what, self.sample, self.stages, states)

    def export(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write every stage as an exact file and, where it is one, a picture; with the trace itself as trace.json.

        Return the files. A folder that holds anything but an earlier export is refused.
        """
        with explain_write_errors(directory, "Choose another folder with --export."):
            return self._export(Path(directory))

    def _export(self, target: Path) -> list[Path]:
        target.mkdir(parents=True, exist_ok=True)
        if any(target.iterdir()) and not (target / "trace.json").exists():
            raise UsageError(f"{target} is not empty, and is not an earlier export.", hint="Name a new folder.")
        written: list[Path] = []
        stems = {}
        for row in self.stages:
            name = "".join(c if c.isalnum() or c in "-_" else "_" for c in row["name"])[:60]
            stems[row["stage"]] = f"{row['stage']:02d}-{name}"
            stem = target / stems[row["stage"]]
            try:
                written += values.export(self.value(row["stage"]), stem)
            except (NeedsTrust, NotFound) as error:
                # An output that was not stored, or only as a pickle, is named in its place; the others are written.
                absent = stem.with_name(stem.name + ".txt")
                absent.write_text(f"{error}\n", encoding="utf-8", errors="backslashreplace")
                written.append(absent)
        written += self._export_outputs(target)
        written += export_overlays(self, target, stems)
        summary = target / "trace.json"
        summary.write_text(plainjson.dumps(self.as_json(), indent=2))
        return [*written, summary]

    def _export_outputs(self, target: Path) -> list[Path]:
        written: list[Path] = []
        for row in self.outputs:
            if row["form"] == "full":
                name = "-".join(str(part) for part in (row["model"], row["number"], row["port"]) if part is not None)
                stem = target / f"output-{''.join(c if c.isalnum() or c in '-_.' else '_' for c in name)[:80]}"
                written += values.export(self._output_value(row), stem)
        return written

    def as_json(self) -> JsonObject:
        """Return the trace as `audit trace --json` prints it."""
        sample = self.sample
        return {
            "run_id": self.run.run_id,
            "epoch": sample["epoch"],
            "index": sample["index"],
            "visit": sample["visit"],
            "source": {
                "path": sample["source"],
                "root": sample["root"],
                "digest": sample["source_digest"],
                "bytes": sample["source_bytes"],
                "state": self.source_state,
            },
            "sources": [
                {
                    "ordinal": row["ordinal"],
                    "role": row["role"],
                    "path": row["source"],
                    "root": row["root"],
                    "digest": row["digest"],
                    "bytes": row["bytes"],
                    "state": state,
                }
                for row, state in zip(self.sources, self.source_states, strict=True)
            ],
            "label": sample["label"],
            "label_name": sample["label_name"],
            **({"batch_label": sample["batch_label"]} if sample["batch_label"] is not None else {}),
            "status": sample["status"],
            "failed_stage": sample["failed_stage"],
            "error": sample["error"],
            "stages": [_stage_json(row) for row in self.stages],
            "prediction": _prediction_json(self.prediction) if self.prediction else None,
            "other_predictions": [_prediction_json(row) for row in self.other_predictions],
            "activations": self.activations,
            **({"outputs": [_output_json(row) for row in self.outputs]} if self.outputs else {}),
            **({"boxes": [_box_json(row) for row in self.boxes]} if self.run.task == "detection" else {}),
            **({"tokens": [_token_json(row) for row in self.tokens]} if self.run.task == "tokens" else {}),
        }


def _prediction_json(row: PredictionRow) -> JsonObject:
    found: dict[str, Any] = {**row}
    return {name: found[name] for name in _PREDICTION}


def _box_json(row: BoxRow) -> JsonObject:
    return {name.rstrip("_"): value for name, value in row.items()}


def _output_json(row: OutputRow) -> JsonObject:
    return {name: value for name, value in row.items() if name not in ("run_id", "epoch", "index", "visit", "data")}


def _token_json(row: TokenRow) -> JsonObject:
    found: dict[str, Any] = {**row}
    return {name: found[name] for name in ("position", "target", "predicted", "probability", "loss", "correct")}


def _stage_json(row: TracedStage) -> JsonObject:
    found: dict[str, Any] = {**row}
    chosen = {name: found[name] for name in _STAGE}
    chosen["params"] = json.loads(row["params"]) if row["params"] else None
    if row["target"]:
        chosen["target"] = json.loads(row["target"])
    return chosen


def trace(
    reader: Reader,
    run: str | None = None,
    *,
    index: int | None = None,
    source: str | None = None,
    epoch: int | None = None,
    visit: int | None = None,
) -> Trace:
    """Return the visit of one sample, by index or by source; without an epoch, the last one recorded."""
    if (index is None) == (source is None):
        raise UsageError("A trace needs an index or a source, and not both.")
    row = reader.run(run)
    recorded = None
    if index is None:
        # The index alone would not do: another loader's sample may have it too.
        index, recorded = _find_source(reader, row, str(source))
    sample = _sample(reader, row, index, epoch, visit, recorded)
    key = f"epoch = {sample['epoch']} AND visit = {sample['visit']}"
    paths = {stage.stage: stage.path for stage in reader.stages(row.run_id)}
    outputs = reader.rows(StageOutputRow, row.run_id, index=index, where=key, order="stage")
    stages = [TracedStage(**output, path=paths.get(output["stage"])) for output in outputs]
    predictions = reader.rows(PredictionRow, row.run_id, index=index, where=key, order="call NULLS FIRST")
    activations = reader.rows(ActivationRow, row.run_id, index=index, where=key)
    return Trace(
        reader,
        row,
        sample,
        stages,
        predictions[0] if predictions else None,
        activations,
        other_predictions=predictions[1:],
        sources=reader.rows(SampleSourceRow, row.run_id, index=index, where=key, order="ordinal"),
    )


def _sample(
    reader: Reader, run: Run, index: int, epoch: int | None, visit: int | None, source: str | None = None
) -> SampleRow:
    where = " AND ".join(
        f"{name} = {int(value)}" for name, value in (("epoch", epoch), ("visit", visit)) if value is not None
    )
    samples = reader.rows(SampleRow, run.run_id, index=index, where=where, order="epoch DESC, visit DESC")
    samples = [row for row in samples if source is None or row["source"] == source]
    if samples:
        return samples[0]
    if source is None:
        _check_absent(reader, run, index, where)
    asked = "".join(f", {name} {value}" for name, value in (("epoch", epoch), ("visit", visit)) if value is not None)
    raise NotFound(
        f"The run {run.run_id} has no sample with index {index}{asked}; it recorded {run.samples:,} visits.",
        hint=f"See which with: audit sql 'SELECT min(index), max(index) FROM samples' --run {run.run_id}",
    )


def _check_absent(reader: Reader, run: Run, index: int, where: str) -> None:
    """Ask for a sample in a second way, over every part, before saying that it does not exist. Raises StoreError if the answers differ."""
    condition = f" AND {where}" if where else ""
    query = f"SELECT count(*) FROM samples WHERE run_id = ? AND index = {int(index)}{condition}"
    found = reader.sql(query, parameters=[run.run_id]).fetchall()[0][0]
    if found:
        raise StoreError(
            f"Two reads of sample {index} of the run {run.run_id} gave different answers: one found no row, the other {found}.",
            hint="Run the command again, and verify the store with: audit store verify",
        )


def _is_utf8(text: str) -> bool:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == text


def _find_source(reader: Reader, run: Run, source: str) -> tuple[int, str]:
    """Return index and source of the sample that is meant: by the recorded path, or by the end of it if exactly one sample matches."""
    # Recorded names are escaped, so the given name is escaped in the same way.
    source = to_printable(os.fsencode(source)) if not source.isprintable() or not _is_utf8(source) else source
    exact = reader.sql(
        "SELECT DISTINCT index FROM samples WHERE run_id = ? AND source = ?", parameters=[run.run_id, source]
    ).fetchall()
    if exact:
        return int(exact[0][0]), source
    tail = source.replace(os.sep, "/").removeprefix("./")
    near = reader.sql(
        "SELECT DISTINCT index, source FROM samples WHERE run_id = ? "
        "AND (ends_with(source, ?) OR ends_with(?, source)) ORDER BY index LIMIT 6",
        parameters=[run.run_id, f"/{tail}", f"/{tail}"],
    ).fetchall()
    if len(near) == 1:
        return int(near[0][0]), str(near[0][1])
    if near:
        listed = ", ".join(path for _, path in near[:5])
        raise UsageError(
            f"Several samples of the run {run.run_id} end in {source!r}: {listed}.",
            hint="Give a longer part of the path.",
        )
    similar = reader.sql(
        "SELECT source FROM samples WHERE run_id = ? GROUP BY source "
        "HAVING jaro_winkler_similarity(source, ?) > 0.9 ORDER BY jaro_winkler_similarity(source, ?) DESC LIMIT 3",
        parameters=[run.run_id, source, source],
    ).fetchall()
    raise NotFound(
        f"The run {run.run_id} has no sample with the source {source!r}.",
        hint=f"Did you mean {', '.join(path for (path,) in similar)}?"
        if similar
        else "Sources are relative to the dataset's root; see them with: "
        f"audit sql 'SELECT index, source FROM samples' --run {run.run_id}",
    )
