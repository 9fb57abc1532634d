"""`exif_orientation`: pictures whose EXIF orientation was ignored on loading."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.file_headers import headers
from audit.checks.shared.files import SourceFile, choose_files
from audit.picture_formats import open_picture
from audit.tables import StageOutputRow

_TURNS = {2: "mirrored", 3: "upside down", 4: "flipped", 5: "transposed", 6: "turned left", 7: "transversed",
          8: "turned right"}  # fmt: skip


class ExifOrientation(Check):
    """Decode a file without its orientation: if the result is the recorded stage 0, the orientation was ignored."""

    description = "Pictures whose EXIF orientation was ignored, so that the model sees them turned or mirrored."
    question = "Was metadata of the picture ignored?"
    rule = "the header says so, and the loaded pixels do not show it"
    assumes = "the files are at hand"
    severity = "warning"
    needs = ("pictures", "files")
    options = settings(files=Option(2_000, "Open at most this many files, evenly chosen; 0 opens all."))

    def run(self, context: Context) -> Iterable[Finding]:
        may = "status = 'ok' AND regexp_matches(lower(source), '\\.(jpe?g|jfif|tiff?|png|webp|heic|avif)$')"
        files = choose_files(context, context.options["files"], may)
        if not files:
            raise Skip("no file has a format that can hold EXIF data")
        unread = 0
        for file, header in headers(context, files):
            turn = 1 if header is None else header.orientation
            unread += header is None
            try:
                ignored = turn in _TURNS and self._is_ignored(context, file)
            except Exception:
                unread += 1
                continue
            if ignored:
                yield Finding(
                    f"{file.source} (index {file.index}) is {_TURNS[turn]} according to its EXIF data (orientation {turn}), "
                    "but loading ignored the orientation.",
                    index=file.index,
                    source=file.source,
                    stage=0,
                    value=turn,
                    threshold=1,
                    sql=context.evidence("stage_outputs", file.index, "stage = 0"),
                )
        if unread:
            context.note(f"{unread:,} files could not be opened")

    def _is_ignored(self, context: Context, file: SourceFile) -> bool:
        from audit import values

        rows = context.reader.rows(StageOutputRow, context.run.run_id, index=file.index, where="stage = 0")
        made = {row["mode"]: row["digest"] for row in rows if row["mode"]}
        following = values.following_digests(context.run.digest_version)
        with following, file.open() as found, open_picture(found) as image:
            return any(values.digest(image.convert(mode)) == digest for mode, digest in made.items())
