"""Pictures as RGB: what Pillow's conversion gives, or what the user has put in its place."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from audit.values.rgb import as_rgb


def encoded(mode: str, form: str, **options: Any) -> bytes:
    content = io.BytesIO()
    Image.merge("RGB", [Image.effect_noise((40, 30), sigma) for sigma in (20, 50, 90)]).convert(mode).save(
        content, form, **options
    )
    return content.getvalue()


FILES = {
    "jpeg": encoded("RGB", "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0", dpi=(72, 72), comment=b"words"),
    "grey jpeg": encoded("L", "JPEG"),
    "cmyk jpeg": encoded("CMYK", "JPEG"),
    "png": encoded("RGB", "PNG"),
    "transparent colour": encoded("RGB", "PNG", transparency=(1, 2, 3)),
    "alpha": encoded("RGBA", "PNG"),
    "palette": encoded("P", "PNG"),
    "gif": encoded("P", "GIF"),
    "animation": encoded("RGB", "WEBP", save_all=True, append_images=[Image.new("RGB", (40, 30))]),
    "ppm": encoded("RGB", "PPM"),
    "bmp": encoded("RGB", "BMP"),
    "tiff": encoded("RGB", "TIFF"),
    "16 bits": encoded("I;16", "PNG"),
}


def what_is_seen(picture: Image.Image) -> tuple[Any, ...]:
    attributes = {name: value for name, value in vars(picture).items() if name not in ("_im", "palette")}
    return type(picture), picture.readonly, picture.size, picture.tobytes(), attributes


@pytest.mark.parametrize("name", FILES)
def test_the_picture_is_the_one_that_pillow_returns(name: str) -> None:
    assert what_is_seen(as_rgb(Image.open(io.BytesIO(FILES[name])))) == what_is_seen(
        Image.open(io.BytesIO(FILES[name])).convert("RGB")
    )


def test_rgb_is_not_copied_and_can_be_written(tmp_path: Path) -> None:
    picture = Image.open(io.BytesIO(FILES["jpeg"]))
    converted = as_rgb(picture)
    assert converted.im is picture.im
    assert converted.info is not picture.info
    # Pixels that belong to a mapped file cannot be written.
    (tmp_path / "a.ppm").write_bytes(FILES["ppm"])
    for written in (converted, as_rgb(Image.open(tmp_path / "a.ppm"))):
        written.load()[0, 0] = (1, 2, 3)  # type: ignore[index]
        assert written.getpixel((0, 0)) == (1, 2, 3)
    assert (tmp_path / "a.ppm").read_bytes() == FILES["ppm"]


@pytest.mark.parametrize("method", ["convert", "copy"])
def test_a_method_that_the_user_has_replaced_is_called(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    marked = Image.new("RGB", (1, 1), (9, 9, 9))
    monkeypatch.setattr(Image.Image, method, lambda *_: marked)
    assert as_rgb(Image.open(io.BytesIO(FILES["jpeg"]))) is marked


def test_a_plugins_own_class_copies_by_itself() -> None:
    class Watched(Image.Image):
        pass

    picture = Watched()
    picture.im, picture._mode, picture._size = Image.new("RGB", (2, 2)).im, "RGB", (2, 2)
    assert as_rgb(picture).im is not picture.im
