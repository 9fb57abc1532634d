"""Why a visit did not come out as recorded, decided by evidence and never by guessing.

In this order: the source, the code, the libraries. What none of them explains is not reproducible, and a second try
tells whether it differs from itself too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from audit.lineage.error_comparison import is_same_error
from audit.lineage.source_state import SourceStates, source_digest_now
from audit.records import Run, Stage, is_call
from audit.sources.builder import builders_of, file_of
from audit.tables import SampleSourceRow
from audit.usercode import find_changed_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from audit.lineage.replay.pipeline import ReplayedVisit, ReplayPipeline
    from audit.lineage.replay.recorded_visits import RecordedVisit
    from audit.recorders.randomness.generator_states import GeneratorState

Reason = Literal["source changed", "source missing", "code changed", "library changed", "not reproducible"]

_MAIN = "__main__."
_OPEN_ELSEWHERE = "already open in this process"


class Reasons:
    """Judges differences of one run."""

    def __init__(self, run: Run, pipeline: ReplayPipeline, recorded_stages: dict[int, Stage]) -> None:
        self._run = run
        self._pipeline = pipeline
        self._recorded = recorded_stages
        self._sources = SourceStates()
        self._now: dict[str, list[Stage]] = {}
        for stage in pipeline.stages:
            self._now.setdefault(stage.path, []).append(stage)

    def explain_absent(
        self, fact: RecordedVisit, index: int, states: Mapping[str, GeneratorState]
    ) -> tuple[Reason, str]:
        """Return why a sample is not in the dataset any more."""
        from audit.recorders.items.item_key import read_recorded_key

        if (key := read_recorded_key(states)) is not None and not key.is_stored:
            asked = f"the dataset was asked for it by {key.shown}"
            return (
                "not reproducible",
                f"{asked}, which was not stored: it does not consist of numbers, texts and plain containers",
            )
        if index < 0:
            return (
                "not reproducible",
                "the dataset was asked for it by a key that is not a number, which was not stored",
            )
        if fact["root"] is None:
            count = len(self._pipeline)
            return "source missing", f"the dataset has {count:,} samples now, so that there is none with index {index}"
        if source_digest_now(fact) is None:
            return "source missing", f"{fact['source']} can no longer be read"
        return "source missing", f"the dataset no longer lists {fact['source']}"

    def is_file_changed(self, row: SampleSourceRow) -> bool:
        """Return whether a file of a sample is gone or has other bytes than were recorded."""
        return self._sources.of(row) not in (None, "unchanged")

    def of(self, outcome: ReplayedVisit, fact: RecordedVisit, ordinal: int | None) -> tuple[Reason, str]:
        """Return the reason, and what was found, both sides of it."""
        return (
            self._source(outcome, fact)
            or self._code(outcome, fact, ordinal)
            or self._library()
            or self._explain_irreproducible(outcome, fact, ordinal)
        )

    def _source(self, outcome: ReplayedVisit, fact: RecordedVisit) -> tuple[Reason, str] | None:
        before = fact["source_digest"]
        if not before:
            return self._further_sources(fact)
        now = outcome.source_digest or (source_digest_now(fact) if fact["root"] else before)
        if now is None:
            return "source missing", f"{fact['source']} can no longer be read"
        if now != before:
            return "source changed", f"its SHA-256 was {before[:12]}…, now it is {now[:12]}…"
        return self._further_sources(fact)

    def _further_sources(self, fact: RecordedVisit) -> tuple[Reason, str] | None:
        """Return the reason, and a sentence for each file of the sample that has changed or is missing."""
        states = [(row, self._sources.of(row)) for row in fact["sources"]]
        changed = [
            f"{_file_of(row)}: {_change_of(row, self._sources.digest_now(row))}"
            for row, state in states
            if state == "changed"
        ]
        missing = [f"{_file_of(row)} can no longer be read" for row, state in states if state == "missing"]
        if not changed and not missing:
            return None
        return ("source changed" if changed else "source missing"), "; ".join([*changed, *missing])

    def _code(self, outcome: ReplayedVisit, fact: RecordedVisit, ordinal: int | None) -> tuple[Reason, str] | None:
        """Return what is described otherwise than it was recorded, in any stage up to the one that differs."""
        for number in sorted(fact["stages"]):
            recorded = self._recorded.get(number)
            if recorded is None or (ordinal is not None and number > ordinal) or recorded.path.startswith("inside."):
                continue
            found = outcome.found.get(recorded.path)
            candidates = self._now.get(recorded.path) or ([found] if found is not None else [])
            if not candidates:
                if is_call(recorded.path):
                    # Not called this time. That alone does not say that its code has changed.
                    continue
                return "code changed", f"the pipeline has no stage {recorded.path} ({recorded.name}) any more"
            described = [_difference_text(recorded, stage) for stage in candidates]
            if all(described) and described[0]:
                return "code changed", described[0]
        known = {stage.path for stage in self._recorded.values()}
        if more := [stage for path, stages in self._now.items() if path not in known for stage in stages]:
            return (
                "code changed",
                f"the pipeline has one more stage than the recording: {more[0].path} ({more[0].name})",
            )
        if outcome.missing:
            held = outcome.missing[0].removeprefix("held:")
            return "code changed", f"the random number generator {held} was recorded, but no longer exists"
        return self._file()

    def _file(self) -> tuple[Reason, str] | None:
        """Return the files of the user's own code, which hold more than stages: constants, and functions they call."""
        recipe = self._run.recipe
        files = list(builders_of(recipe))
        if spec := recipe.get("pipeline"):
            files.append({"file": file_of(spec), "sha256": recipe.get("pipeline_sha256")})
        files += [*recipe.get("code", ()), *(one for builder in builders_of(recipe) for one in builder.get("code", ()))]
        for file, before, now in find_changed_files(files):
            return "code changed", f"{file}: its SHA-256 was {before[:12]}…, now it is {now[:12]}…"
        return None

    def _library(self) -> tuple[Reason, str] | None:
        from audit.provenance import versions

        now = versions(self._run.digest_version)
        changed = [
            f"{name} {before} → {now.get(name, 'none')}"
            for name, before in self._run.versions.items()
            if name not in ("audit", "digests") and now.get(name) != before
        ]
        return ("library changed", ", ".join(changed)) if changed else None

    def _explain_irreproducible(
        self, outcome: ReplayedVisit, fact: RecordedVisit, ordinal: int | None
    ) -> tuple[Reason, str]:
        second = self._pipeline.replay_visit(outcome.task)
        if second.digests != outcome.digests or not is_same_error(second.error, outcome.error):
            return (
                "not reproducible",
                "two replays differ from each other: the stage uses something that was not recorded",
            )
        if outcome.error and not fact["error"]:
            # As LMDB says, which opens a file once in a process.
            hint = "; close it, or replay in another process" if _OPEN_ELSEWHERE in outcome.error else ""
            return (
                "not reproducible",
                f"it was recorded, but fails now, in two replays in the same way: {outcome.error}{hint}",
            )
        failed = f" ({outcome.error})" if outcome.error else ""
        what = "what the dataset reads has changed, or " if ordinal == 0 else ""
        return (
            "not reproducible",
            f"two replays agree with each other, but not with the recording: {what}it depends on the process, the order "
            f"of visits or a state that was not recorded{failed}",
        )


def _shorten(digest: str | None) -> str:
    return f"{(digest or '')[:12]}…"


def _change_of(row: SampleSourceRow, now: str | None) -> str:
    if now is None:
        return f"it had {row['bytes']:,} bytes, now it has another number"
    return f"its SHA-256 was {_shorten(row['digest'])}, now it is {_shorten(now)}"


def _file_of(row: SampleSourceRow) -> str:
    return f"{row['source']} ({row['role']})" if row["role"] else str(row["source"])


def _difference_text(recorded: Stage, stage: Stage) -> str | None:
    for what in ("qualname", "parameters", "source_code_digest"):
        before, now = getattr(recorded, what), getattr(stage, what)
        if before != now and not _differs_only_in_main(before, now):
            return f"{recorded.name}: {what} was {before}, now it is {now}"
    return None


def _differs_only_in_main(before: str | None, now: str | None) -> bool:
    """Return whether they differ only in this: a script's module is `__main__` while it runs, and else has its file's name."""
    if before is None or now is None:
        return False
    return any(
        _MAIN in main and re.fullmatch(re.escape(main).replace(re.escape(_MAIN), r"[^\s\"']+\."), other) is not None
        for main, other in ((before, now), (now, before))
    )
