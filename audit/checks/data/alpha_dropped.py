"""`alpha_dropped`: transparency that a stage threw away, so that what was hidden shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.files import Opened, SourceFile, chosen_files, opened

_ALPHA = "('RGBA', 'LA', 'PA', 'RGBa', 'La')"


class AlphaDropped(Check):
    """Dropping an alpha channel that hides nothing is harmless and not told, where the file can say so."""

    name = "alpha_dropped"
    group = "data"
    description = "Pictures with transparent parts whose alpha channel was dropped instead of being composed."
    severity = "warning"
    needs = ("pictures",)
    options = settings(files=Option(2_000, "At most this many files are opened, evenly chosen; 0 opens all."))

    def run(self, context: Context) -> Iterable[Finding]:
        told = set()
        if any(f"'{row['mode']}'" in _ALPHA for row in context.profile):
            for row in self._recorded(context):
                told.add(row["index"])
                yield _finding(context, row["index"], row["source"], row["stage"], row["mode"])
        if context.facts.root is None:
            return
        # A loader that converts to RGB drops it before anything is recorded; only the file knows.
        may = "status = 'ok' AND regexp_matches(lower(source), '\\.(png|webp|gif|tiff?|tga)$')"
        plain = (
            f"index IN (SELECT index FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = 0 "
            "AND mode IN ('RGB', 'L'))"
        )
        for file, found in opened(chosen_files(context, context.options["files"], f"{may} AND {plain}")):
            if file.index not in told and (mode := _hides(found)):
                yield _finding(context, file.index, file.source, 0, mode)

    def _recorded(self, context: Context) -> Iterable[dict[str, Any]]:
        outputs = f"(FROM stage_outputs WHERE run_id = {context.run_literal} AND visit = 0 AND kind = 'image')"
        query = (
            f"SELECT b.index, s.source, s.root, s.source_raw, min(a.stage) AS stage, any_value(b.mode) AS mode "
            f"FROM {outputs} b JOIN {outputs} a ON a.epoch = b.epoch AND a.index = b.index AND a.stage = b.stage + 1 "
            f"JOIN {context.items} s ON s.epoch = b.epoch AND s.index = b.index "
            f"WHERE b.mode IN {_ALPHA} AND a.mode NOT IN {_ALPHA} GROUP BY b.index, s.source, s.root, s.source_raw"
        )
        for file, found in opened([SourceFile(row) for row in context.offenders(query)]):
            # The file may tell that nothing was hidden; where it is gone, the recorded mode has to do.
            if isinstance(found, OSError) or _hides(found):
                yield file.row


def _hides(found: Opened | OSError) -> str | None:
    """The mode of a file that has transparent pixels, else None."""
    from PIL import Image

    if isinstance(found, OSError):
        return None
    try:
        with found, Image.open(found) as image:
            if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
                return None
            mode = str(image.mode)
            lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
            return mode if isinstance(lowest, (int, float)) and lowest < 255 else None
    except Exception:
        return None


def _finding(context: Context, index: int, source: str, stage: int, mode: str) -> Finding:
    return Finding(
        f"{source} (index {index}) has transparent parts ({mode}), and {context.stage_name(stage)} dropped its alpha.",
        index=index,
        source=source,
        stage=stage,
        sql=context.evidence("stage_outputs", index),
    )


CHECK = AlphaDropped
