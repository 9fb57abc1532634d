"""Checks that look at source files look at the objects of a bucket just the same."""

from __future__ import annotations

import io

import numpy as np
import pytest
from object_service import Service
from PIL import Image

import audit
from audit.checks.runner import run_checks
from audit.store.bucket.location import ObjectLocation, parse_location

pytestmark = pytest.mark.buckets

boto3 = pytest.importorskip("boto3")

LOOKED_AT = ("source_unchanged", "exif_orientation", "alpha_dropped", "near_duplicates", "image_quality")


def _put(place: ObjectLocation, name: str, image: Image.Image, **options: object) -> None:
    data = io.BytesIO()
    image.save(data, name.rpartition(".")[2].replace("jpg", "jpeg"), **options)
    boto3.client("s3").put_object(Bucket=place.bucket, Key=f"{place.prefix}/{name}", Body=data.getvalue())


def _picture(seed: int, mode: str = "RGB") -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 8, len(mode)), dtype=np.uint8)
    return Image.fromarray(coarse).resize((64, 48), Image.Resampling.BILINEAR)


def test_files_are_looked_at_in_a_bucket(service: Service, place: str) -> None:
    data = parse_location(f"{place}-data")
    for number in range(12):
        _put(data, f"{'ab'[number % 2]}/{number:02d}.png", _picture(number))
    turned = Image.Exif()
    turned[0x0112] = 6
    _put(data, "a/turned.jpg", _picture(50), exif=turned, quality=95)
    _put(data, "b/through.png", _picture(51, "RGBA"))
    _put(data, "b/again.png", _picture(0).resize((60, 45), Image.Resampling.LANCZOS))
    audit.run(str(data), store=place, capture="digest", workers=0)
    report = run_checks(place, only=LOOKED_AT)
    assert not report.with_status("skip", "error")
    reported = {outcome.check: [finding.source for finding in outcome.findings] for outcome in report.outcomes}
    assert reported["source_unchanged"] == []
    assert reported["exif_orientation"] == ["a/turned.jpg"]
    assert reported["near_duplicates"] == ["b/again.png"]
    client = boto3.client("s3")
    client.put_object(Bucket=data.bucket, Key=f"{data.prefix}/a/02.png", Body=b"edited")
    client.delete_object(Bucket=data.bucket, Key=f"{data.prefix}/b/03.png")
    outcome = run_checks(place, only=["source_unchanged"]).outcome("source_unchanged")
    messages = {finding.source: finding.message for finding in outcome.findings}
    assert messages.keys() == {"a/02.png", "b/03.png"}
    assert "6 instead of" in messages["a/02.png"]
    assert "no longer exists" in messages["b/03.png"]


def test_a_bucket_that_does_not_answer_is_a_skip(service: Service, place: str) -> None:
    data = parse_location(f"{place}-data")
    for number in range(3):
        _put(data, f"{number}.png", _picture(number))
    audit.run(str(data), store=place, capture="digest", workers=0)
    service.fault("GET", ".png", status=403, times=1)
    outcome = run_checks(place, only=["source_unchanged"]).outcome("source_unchanged")
    assert (outcome.status, outcome.message) == ("skip", "the source files do not exist here, or cannot be read")
