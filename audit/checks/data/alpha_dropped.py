"""`alpha_dropped`: a stage dropped the alpha channel, so hidden pixels become visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.file_headers import headers
from audit.checks.shared.files import OpenFile, SourceFile, choose_files, open_files
from audit.picture_formats import open_picture

if TYPE_CHECKING:
    from PIL import Image

#: At most this many indices are listed in a query; for more, all rows are read.
_MOST_NAMED = 10_000
_ALPHA = "('RGBA', 'LA', 'PA', 'RGBa', 'La')"


class LoadedPicture(TypedDict):
    """What a picture was decoded to."""

    index: int
    mode: str
    shape: list[int]
    digest: str | None


class ConvertedPicture(TypedDict):
    """A picture without an alpha channel, and the stage before it, which still had one."""

    mode: str
    shape: list[int]
    digest: str | None
    before: int


@dataclass(frozen=True, slots=True)
class AlphaLoss(SourceFile):
    """A file whose alpha channel is gone after `stage`; `mode` is the mode before it."""

    stage: int
    made: ConvertedPicture
    mode: str


class AlphaDropped(Check):
    """Ignore a dropped alpha channel if the file shows that it had no transparent pixel."""

    description = "Pictures with transparent parts whose alpha channel was dropped instead of being composed."
    severity = "warning"
    needs = ("pictures",)
    options = settings(files=Option(2_000, "Open at most this many files, evenly chosen; 0 opens all."))

    def run(self, context: Context) -> Iterable[Finding]:
        reported = set()
        if any(f"'{row['mode']}'" in _ALPHA for row in context.profile):
            for loss in self._find_recorded(context):
                reported.add((loss.index, loss.source))
                yield _finding(context, loss.index, loss.source, loss.stage, loss.mode)
        if context.facts.root is None:
            return
        # A loader that converts to RGB drops it before anything is recorded, so only the file can show it.
        may = "status = 'ok' AND regexp_matches(lower(source), '\\.(png|webp|gif|tiff?|tga)$')"
        plain = f"index IN (SELECT index FROM {context.load_outputs} WHERE mode IN ('RGB', 'L'))"
        files = choose_files(context, context.options["files"], f"{may} AND {plain}")
        hiding = [file for file, header in headers(context, files) if header is None or header.transparent]
        loaded = self._find_loaded(context, hiding)
        for file, found in open_files(hiding):
            if (file.index, file.source) not in reported and (mode := _find_dropped(found, loaded.get(file.index))):
                yield _finding(context, file.index, file.source, 0, mode)

    def _find_recorded(self, context: Context) -> Iterable[AlphaLoss]:
        """Yield the first stage without an alpha channel after one with it."""
        outputs = (
            "SELECT epoch, index, visit, stage, mode, shape, digest, lag(mode) OVER visits AS mode_before, "
            "lag(stage) OVER visits AS stage_before FROM stage_outputs "
            f"WHERE run_id = {context.run_literal} AND kind = 'image' "
            "WINDOW visits AS (PARTITION BY epoch, index, visit ORDER BY stage)"
        )
        query = (
            "SELECT s.index, s.source, s.root, s.source_raw, s.source_digest, s.source_bytes, s.split, min(o.stage) AS stage, "
            "arg_min({mode: mode, shape: shape, digest: digest, before: stage_before}, o.stage) AS made, "
            f"any_value(mode_before) AS mode FROM ({outputs}) o JOIN {context.items} s USING (epoch, index, visit) "
            f"WHERE mode_before IN {_ALPHA} AND mode NOT IN {_ALPHA} GROUP BY ALL"
        )
        losses = [AlphaLoss(**row) for row in context.offenders(query)]
        for loss, (_, found) in zip(losses, open_files(losses), strict=True):
            # The file can show that nothing was hidden; if the file is missing, the recorded mode decides.
            if isinstance(found, OSError) or _find_dropped(found, [loss.made] if loss.made["before"] == 0 else None):
                yield loss

    def _find_loaded(self, context: Context, files: Sequence[SourceFile]) -> dict[int, list[LoadedPicture]]:
        """Return what was loaded from each file, with one query for all of them."""
        listed = ", ".join(str(file.index) for file in files)
        chosen = f" WHERE index IN ({listed})" if 0 < len(files) <= _MOST_NAMED else ""
        found: dict[int, list[LoadedPicture]] = {}
        query = f"SELECT index, mode, shape, digest FROM {context.load_outputs}{chosen}"
        for row in context.facts.typed_rows(LoadedPicture, query) if files else ():
            found.setdefault(row["index"], []).append(row)
        return found


def _find_dropped(found: OpenFile | OSError, made: Sequence[LoadedPicture | ConvertedPicture] | None) -> str | None:
    """Return the mode of a file with transparent pixels, or None if loading did more than convert the mode."""
    if isinstance(found, OSError):
        return None
    try:
        with found, open_picture(found) as image:
            if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
                return None
            lowest, _ = image.convert("RGBA").getchannel("A").getextrema()
            if not isinstance(lowest, (int, float)) or lowest >= 255:
                return None
            for row in made or ():
                # Same size but different pixels: it was composed with a background.
                same_size = row["shape"][:2] == [image.height, image.width]
                if same_size and row["digest"] not in _digests_of(image.convert(row["mode"])):
                    return None
            return str(image.mode)
    except Exception:
        return None


def _digests_of(image: Image.Image) -> set[str | None]:
    """Return the digests of a picture with and without its transparency entry, which a loader may keep or leave out."""
    from audit import values

    kept = values.digest(image)
    image.info.pop("transparency", None)
    return {kept, values.digest(image)}


def _finding(context: Context, index: int, source: str, stage: int, mode: str) -> Finding:
    return Finding(
        f"{source} (index {index}) has transparent parts ({mode}), and {context.stage_name(stage)} dropped its alpha.",
        index=index,
        source=source,
        stage=stage,
        sql=context.evidence("stage_outputs", index),
    )
