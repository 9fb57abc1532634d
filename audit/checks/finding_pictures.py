"""Small pictures of the samples that the worst findings name: new mistakes first, for a comment on a pull request.

A picture is decoded and encoded again, so that no byte of a stranger's file gets into the comment. Nothing is executed:
a sample without a stored preview is shown only if its source file can be read as a picture.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

from audit.checks.base import Finding
from audit.checks.report import Report
from audit.errors import AuditError
from audit.lineage.trace import trace
from audit.picture_formats import open_picture
from audit.store.read.reader import Reader

#: The longer side of a picture, in pixels.
_SIDE = 96
#: The check whose findings are shown before all others.
_FIRST = "prediction_flips"


@dataclass(frozen=True, slots=True)
class FindingPicture:
    """One finding with a small JPEG of its sample."""

    check: str
    finding: Finding
    jpeg: bytes


def finding_pictures(reader: Reader, report: Report, most: int = 6) -> list[FindingPicture]:
    """Return pictures of at most `most` samples with findings, each sample once."""
    found: list[FindingPicture] = []
    for check, finding in _candidates(report):
        if len(found) == most:
            break
        jpeg = _jpeg(reader, report.run_id, finding)
        if jpeg is not None:
            found.append(FindingPicture(check, finding, jpeg))
    return found


def _candidates(report: Report) -> Iterator[tuple[str, Finding]]:
    seen: set[tuple[int, str | None]] = set()
    outcomes = sorted(report.with_status("fail"), key=lambda outcome: outcome.check != _FIRST)
    for outcome in outcomes:
        for finding in outcome.findings:
            if finding.index is not None and (finding.index, finding.source) not in seen:
                seen.add((finding.index, finding.source))
                yield outcome.check, finding


def _jpeg(reader: Reader, run_id: str, finding: Finding) -> bytes | None:
    """Return a thumbnail of a sample, or None if it has no picture."""
    from PIL import Image

    try:
        # By its source, if it is known: a sample of another loader may have the same index.
        found = trace(reader, run_id, **({"source": finding.source} if finding.source else {"index": finding.index}))
        preview = found.preview(0)
        if preview is not None and not preview.media_type.startswith("image/"):
            return None
        data = preview.data if preview is not None else found.read_source()
        with open_picture(data) as image:
            image.draft("RGB", (2 * _SIDE, 2 * _SIDE))
            small = image.convert("RGB")
    except (AuditError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    small.thumbnail((_SIDE, _SIDE))
    # Of a picture of a few pixels, each is shown as a square.
    small = small.resize([length * max(1, _SIDE // max(small.size)) for length in small.size], Image.Resampling.NEAREST)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return out.getvalue()
