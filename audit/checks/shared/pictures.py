"""Small pictures of the sources for checks: stored previews, stored outputs of stage 0, or else the files.

Only Pillow decodes here, no torch. Pictures that cannot be decoded are counted in a note; they raise nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from audit.checks.base import Skip
from audit.checks.context import Context
from audit.checks.shared.files import chosen_files, evenly, opened
from audit.sources.decode import open_picture

#: Larger pictures are scaled down to this: enough for the checks, and cheap for JPEG.
SIDE = 256


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded source."""

    index: int
    source: str
    digest: str | None
    image: Any


def pictures(context: Context, most: int, *, exact: bool = False) -> Iterator[Picture]:
    """Yield at most `most` pictures of the items, evenly chosen (0: all). `exact` excludes previews, which are lossy."""
    forms = {
        row["form"]: row["pictures"]
        for row in context.cached(
            f"SELECT form, count(*) AS pictures FROM payloads WHERE run_id = {context.run_literal} AND stage = 0 "
            f"AND kind = 'image'{context.of_items} GROUP BY form"
        )
    }
    order = ("full",) if exact else ("preview", "full")
    form = next((form for form in order if forms.get(form)), None)
    if form is not None:
        yield from _stored(context, form, forms[form], most)
    elif context.facts.root is not None:
        yield from _from_files(context, most)
    else:
        raise Skip("no picture was stored, and the source files do not exist here")


def _stored(context: Context, form: str, total: int, most: int) -> Iterator[Picture]:
    chosen = "true"
    if most and total > most:
        context.note(f"checked {most:,} of {total:,} pictures")
        chosen = evenly(most, total)
    query = (
        f"SELECT index, source, source_digest, kind, encoding, data FROM {context.items} JOIN payloads "
        f"USING (run_id, epoch, index, visit) WHERE stage = 0 AND form = '{form}' AND {chosen}"
    )
    failed = 0
    for _, rows in context.reader.sql(query, run=[context.run.run_id]).batches(256):
        for index, source, digest, kind, encoding, data in rows:
            try:
                yield Picture(index, source, digest, _decoded(form, kind, encoding, data))
            except Exception:
                failed += 1
    _say_failed(context, failed)


def _decoded(form: str, kind: str, encoding: str, data: bytes) -> Any:
    if form == "preview":
        image = open_picture(data)
        image.load()
        return image
    from audit import values

    return values.decode(kind, values.Encoded(encoding, data))


def _from_files(context: Context, most: int) -> Iterator[Picture]:
    failed = 0
    for file, found in opened(chosen_files(context, most, "status = 'ok'")):
        try:
            if isinstance(found, OSError):
                raise found
            with found, open_picture(found) as image:
                # JPEG can be decoded at a fraction of its size, which is much faster.
                image.draft(None, (SIDE, SIDE))
                image.load()
                yield Picture(file.index, file.source, file.source_digest, image)
        except Exception:
            failed += 1
    _say_failed(context, failed)


def _say_failed(context: Context, failed: int) -> None:
    if failed:
        context.note(f"{failed:,} pictures could not be decoded")
