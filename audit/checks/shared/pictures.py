"""Small pictures of the sources for checks: stored previews, stored outputs of stage 0, or else the files.

Only Pillow decodes here, no torch. Pictures that cannot be decoded are counted in a note; they raise nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from audit.checks.base import Skip
from audit.checks.context import Context
from audit.checks.shared.content import contents
from audit.checks.shared.files import choose_files, open_files, spread_evenly
from audit.picture_formats import open_picture

#: Larger pictures are scaled down to this: enough for the checks, and cheap for JPEG.
SIDE = 256
#: Whole pictures with no longer side than this are read instead of their previews, which are compressed.
SMALL_SIDE = 64
#: So many stored pictures are fetched at a time, and decoded together if they are alike.
_PICTURES_AT_ONCE = 64
#: The encoding of previews that have the pixels of the picture, and those of whole pictures that take long to decode.
_LOSSLESS, _SLOW = "image/png", ("bits",)


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded source."""

    index: int
    source: str
    #: What equal pictures have in common: of the file's bytes, or of what was loaded where there is no file.
    digest: str | None
    #: A picture of Pillow's, or the bytes of a grey or RGB picture as an array.
    image: Any
    #: Whether the pixels are those that were loaded: not those of a preview that was scaled or compressed.
    exact: bool = True
    split: str | None = None

    @property
    def sample(self) -> tuple[str | None, int]:
        """Return what identifies the sample: each loader of a run counts its samples from 0, and has a split of its own."""
        return self.split, self.index

    def without_image(self) -> Picture:
        """Return what identifies the picture, without its pixels."""
        return Picture(self.index, self.source, self.digest, None, self.exact, self.split)


class StoredForm(TypedDict):
    """How many pictures are stored in one form (`full` or `preview`), and in which encoding most of them are."""

    form: str
    pictures: int
    encoding: str


def pictures(context: Context, most: int, *, exact: bool = False) -> Iterator[Picture]:
    """Yield at most `most` pictures of the items, evenly chosen (0: all). `exact` excludes previews, which are lossy."""
    forms = {
        row["form"]: StoredForm(form=row["form"], pictures=row["pictures"], encoding=row["encoding"])
        for row in context.query_once(
            "SELECT form, count(*) AS pictures, mode(encoding) AS encoding FROM payloads WHERE "
            f"run_id = {context.run_literal} AND stage = 0 AND kind = 'image'{context.of_items} GROUP BY form"
        )
    }
    form = _best_form(context, forms, exact)
    if form is not None:
        yield from _yield_stored(context, form, forms[form]["pictures"], most)
    elif context.facts.root is not None:
        yield from _from_files(context, most)
    else:
        raise Skip("no picture was stored, and the source files do not exist here")


def _best_form(context: Context, forms: dict[str, StoredForm], exact: bool) -> str | None:
    """Return which stored form to read: previews, unless they must be exact or whole pictures are as quick to decode."""
    if not exact and "preview" in forms:
        if "full" not in forms or forms["preview"]["encoding"] == _LOSSLESS or forms["full"]["encoding"] in _SLOW:
            return "preview"
        side = context.value(f"SELECT max(list_max(shape)) FROM {context.load_outputs} WHERE kind = 'image'")
        if side > SMALL_SIDE:
            return "preview"
    return "full" if "full" in forms else None


def _yield_stored(context: Context, form: str, total: int, most: int) -> Iterator[Picture]:
    chosen = "true"
    if most and total > most:
        context.note(f"checked {most:,} of {total:,} pictures")
        chosen = spread_evenly(most, total)
    query = (
        f"SELECT index, source, content, kind, encoding, data, split FROM {contents(context)} JOIN payloads "
        f"USING (run_id, epoch, index, visit) WHERE stage = 0 AND form = '{form}' AND {chosen}"
    )
    failed = 0
    for _, rows in context.reader.sql(query, run=[context.run.run_id]).batches(_PICTURES_AT_ONCE):
        together = _decode_together(form, rows)
        for n, (index, source, digest, kind, encoding, data, split) in enumerate(rows):
            try:
                exact = form == "full" or encoding == _LOSSLESS
                image = _decode(form, kind, encoding, data) if together is None else together[n]
                yield Picture(index, source, digest, image, exact, split)
            except Exception:
                failed += 1
    _say_failed(context, failed)


def _decode_together(form: str, rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the pixels of some pictures that all have one encoding and size; None if they must be decoded one by one."""
    from audit.values.image import decode_all_pixels
    from audit.values.plain_png import read_plain_pngs

    encodings = {row[4] for row in rows}
    if len(encodings) != 1 or any(row[3] != "image" for row in rows):
        return None
    data = [row[5] for row in rows]
    try:
        if form == "full":
            return decode_all_pixels(data, *encodings)
        return read_plain_pngs(data) if encodings == {_LOSSLESS} else None
    except Exception:
        return None


def _decode(form: str, kind: str, encoding: str, data: bytes) -> Any:
    from audit import values
    from audit.values.image import decode_pixels
    from audit.values.plain_png import read_plain_png

    if form == "full":
        encoded = values.EncodedValue(encoding, data)
        pixels = decode_pixels(encoded)
        return pixels if pixels is not None else values.decode(kind, encoded)
    pixels = read_plain_png(data) if encoding == _LOSSLESS else None
    if pixels is not None:
        return pixels
    image = open_picture(data)
    image.load()
    return image


def _from_files(context: Context, most: int) -> Iterator[Picture]:
    failed = 0
    for file, found in open_files(choose_files(context, most, "status = 'ok'")):
        try:
            if isinstance(found, OSError):
                raise found
            with found, open_picture(found) as image:
                # JPEG can be decoded at a fraction of its size, which is much faster.
                image.draft(None, (SIDE, SIDE))
                image.load()
                yield Picture(file.index, file.source, file.source_digest, image, split=file.split)
        except Exception:
            failed += 1
    _say_failed(context, failed)


def _say_failed(context: Context, failed: int) -> None:
    if failed:
        context.note(f"{failed:,} pictures could not be decoded")
