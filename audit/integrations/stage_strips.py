"""Pictures of single visits: every stage's preview side by side, for tools that show pictures beside numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from audit.errors import NotFound
from audit.integrations import run_facts as facts
from audit.records import Run
from audit.store.read.reader import Reader

if TYPE_CHECKING:
    from PIL.Image import Image

_HEIGHT = 96
_GAP = 4


def has_pictures(reader: Reader, run: Run) -> bool:
    """Return whether any preview of the run is a picture."""
    found = reader.sql(
        "SELECT 1 FROM payloads WHERE run_id = ? AND form = 'preview' AND starts_with(encoding, 'image/') LIMIT 1",
        run=run.run_id,
        parameters=[run.run_id],
    ).fetchone()
    return found is not None


def worst_strips(reader: Reader, run: Run, most: int) -> Iterator[tuple[int, dict[str, Any], Image]]:
    """Yield the worst mistakes that have pictures: place among the mistakes, row, and film strip."""
    for place, row in enumerate(facts.mistakes(reader, run, most) if has_pictures(reader, run) else []):
        strip = film_strip(reader, run, row)
        if strip is not None:
            yield place, row, strip


def mistake_text(row: dict[str, Any]) -> str:
    """Return a mistake in words; a class without a name is shown by number."""
    names = [row[f"{what}_name"] or row[what] for what in ("label", "predicted")]
    return f"{names[0]} taken for {names[1]}"


def film_strip(reader: Reader, run: Run, row: dict[str, Any]) -> Image | None:
    """Return the stages of one visit from left to right; None where no preview was stored."""
    from PIL import Image

    pictures = [_scale(picture) for picture in previews(reader, run, row)]
    if not pictures:
        return None
    width = sum(picture.width for picture in pictures) + _GAP * (len(pictures) - 1)
    strip = Image.new("RGB", (width, _HEIGHT), "white")
    at = 0
    for picture in pictures:
        strip.paste(picture, (at, 0))
        at += picture.width + _GAP
    return strip


def previews(reader: Reader, run: Run, row: dict[str, Any]) -> Iterator[Image]:
    """Yield the decoded previews of a visit's stages that are pictures."""
    from audit.lineage.trace import trace
    from audit.report.html.previews import decode

    try:
        found = trace(reader, run.run_id, index=row["index"], epoch=row["epoch"], visit=row["visit"])
    except NotFound:
        return
    for stage in found.stages:
        preview = found.preview(stage["stage"])
        if preview is None or not preview.media_type.startswith("image/"):
            continue
        picture = decode(preview.data)
        if picture is not None:
            yield picture.convert("RGB")


def _scale(picture: Image) -> Image:
    from PIL import Image

    width = max(1, min(4 * _HEIGHT, round(picture.width * _HEIGHT / picture.height)))
    return picture.resize((width, _HEIGHT), Image.Resampling.NEAREST if picture.height < _HEIGHT else None)
