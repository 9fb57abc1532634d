"""`channel_order`: pictures reach the model with red and blue swapped, as OpenCV loads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import choose_files, open_files
from audit.picture_formats import open_picture

Order = str
_ORDERS: dict[Order, list[int]] = {"rgb": [0, 1, 2], "bgr": [2, 1, 0]}


class StageDigest(TypedDict):
    """The digest of one stage's output."""

    index: int
    stage: int
    digest: str | None


class ChannelOrder(Check):
    """Decode a few files and compare the digests of both orders with those of the recorded stages; run nothing."""

    description = "The last stage that still shows the file's own pixels has them as red, green, blue, not reversed, and each in its place."
    question = "Are channels reversed, or axes read wrongly?"
    rule = (
        "digests of the stages are compared with the file's own pixels, with channels reversed and with axes exchanged"
    )
    assumes = "the files are at hand; a stage shows the file's pixels"
    severity = "warning"
    needs = ("files",)
    options = settings(
        files=Option(24, "Read at most this many files, evenly chosen."),
        expected=Option("rgb", "The order that the model was trained with: rgb or bgr."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        files = choose_files(context, max(1, context.options["files"]), "status = 'ok'")
        if not files:
            raise Skip("no sample was read from one file")
        listed = ", ".join(str(file.index) for file in files)
        query = (
            f"SELECT index, stage, digest FROM {context.outputs} WHERE index IN ({listed}) ORDER BY epoch, visit, stage"
        )
        recorded: dict[int, list[StageDigest]] = {}
        for row in context.facts.typed_rows(StageDigest, query):
            recorded.setdefault(row["index"], []).append(row)
        from audit import values

        last: dict[int, tuple[int, Order]] = {}
        for file, found in open_files(files):
            if not isinstance(found, OSError):
                with found, values.following_digests(context.run.digest_version):
                    known = dict(_digests(found))
                for row in recorded.get(file.index, ()):
                    if row["digest"] in known:
                        last[file.index] = row["stage"], known[row["digest"]]
        yield from self._judge(context, last, query)

    def _judge(self, context: Context, last: dict[int, tuple[int, Order]], query: str) -> Iterable[Finding]:
        if not last:
            raise Skip("no stage shows the pixels of a file unchanged, so that their order cannot be seen; see --probe")
        wrong = {index: found for index, found in last.items() if found[1] != context.options["expected"]}
        context.note(f"seen in {len(last)} files")
        reshaped = {index: found[0] for index, found in wrong.items() if found[1] == "reshaped"}
        if reshaped:
            index, stage = min(reshaped.items())
            yield Finding(
                f"In {len(reshaped)} of {len(last)} files that were read again, {context.stage_name(stage)} took height×width×channels "
                "for channels×height×width: every pixel is in another place. Use permute(2, 0, 1) instead of reshape or view.",
                index=index,
                stage=stage,
                value=len(reshaped),
                threshold=0,
                sql=query,
                severity="error",
            )
        elif wrong:
            index, (stage, order) = min(wrong.items())
            yield Finding(
                f"In {len(wrong)} of {len(last)} files that were read again, {context.stage_name(stage)} has the channels as "
                f"{order}, and no later stage shows them otherwise; the model gets red and blue swapped unless it was "
                f'trained so. Convert them, or set expected = "{order}" in [checks.channel_order].',
                index=index,
                stage=stage,
                value=len(wrong),
                threshold=0,
                sql=query,
            )


def _digests(file: Any) -> Iterator[tuple[str | None, Order]]:
    """Yield the digests of a file's pixels in both orders, in each form that pipelines use: array, picture, tensor."""
    import numpy as np
    from PIL import Image

    from audit import values
    from audit.values import hashing, tv

    try:
        with open_picture(file) as image:
            pixels = np.asarray(image.convert("RGB"))
    except Exception:
        return
    if (pixels == pixels[:, :, ::-1]).all():
        return  # grey: both orders are one
    height, width = pixels.shape[:2]
    shown: list[tuple[Order, Any]] = [("reshaped", pixels.reshape(3, height, width))]
    for order, channels in _ORDERS.items():
        given = np.ascontiguousarray(pixels[:, :, channels])
        shown += [(order, given), (order, np.ascontiguousarray(given.transpose(2, 0, 1)))]
        yield values.digest(Image.fromarray(given)), order
    for order, whole in shown:
        for form in (whole, whole.astype(np.float32) / np.float32(255)):
            yield values.digest(form), order
            for kept in (None, {"type": "Image"}):
                raw = np.frombuffer(form.tobytes(), np.uint8)
                yield (
                    hashing.digest_parts("tensor", str(form.dtype), form.shape, raw, tv.encode_metadata(kept)),
                    order,
                )
