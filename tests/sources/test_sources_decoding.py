"""Single files: what is decoded as what, and what raises where."""

from __future__ import annotations

import io
import os
import socket
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from audit.models.presets import ConvertRGB
from audit.picture_formats import picture_formats
from audit.sources import FileDataset, open_dataset
from audit.sources.decode import decode_picture, decode_sample, sample_suffixes
from audit.sources.files import FolderOpener, open_file


def encoded(picture: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def noise(mode: str, size: tuple[int, int] = (9, 7)) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.frombytes(mode, size, values.tobytes())


def one_file(folder: Path, name: str, data: bytes) -> FileDataset:
    (folder / name).write_bytes(data)
    dataset = open_dataset(folder)
    assert isinstance(dataset, FileDataset)
    return dataset


@pytest.mark.parametrize(
    ("mode", "form"), [("L", "PNG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("CMYK", "TIFF")]
)
def test_pictures_keep_their_mode_and_pixels(tmp_path: Path, mode: str, form: str) -> None:
    picture = noise(mode)
    value = one_file(tmp_path, f"a.{form.lower()}", encoded(picture, form))[0]
    assert value.mode == mode
    assert value.tobytes() == picture.tobytes()


def test_cmyk_jpeg_and_palette_and_one_bit_keep_their_mode() -> None:
    assert decode_picture(encoded(noise("CMYK"), "JPEG")).mode == "CMYK"
    palette = noise("RGB").quantize(8)
    assert decode_picture(encoded(palette)).mode == "P"
    assert decode_picture(encoded(Image.new("1", (5, 5), 1))).mode == "1"


def test_sixteen_bits_stay_sixteen_bits() -> None:
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    value = decode_picture(encoded(Image.fromarray(ramp)))
    assert value.mode == "I;16"
    assert np.array_equal(np.asarray(value), ramp)


def test_the_conversion_to_rgb_equals_torchvisions(tmp_path: Path) -> None:
    from torchvision.datasets.folder import default_loader

    for mode in ("L", "RGBA", "RGB"):
        (tmp_path / "a.png").write_bytes(encoded(noise(mode)))
        theirs = default_loader(str(tmp_path / "a.png"))
        ours = ConvertRGB()(decode_picture((tmp_path / "a.png").read_bytes()))
        assert (ours.mode, ours.tobytes()) == (theirs.mode, theirs.tobytes())


def test_orientation_is_not_applied() -> None:
    picture = noise("RGB", (8, 4))
    exif = Image.Exif()
    exif[274] = 6
    value = decode_picture(encoded(picture, "PNG", exif=exif.tobytes()))
    assert value.size == (8, 4)
    assert value.tobytes() == picture.tobytes()
    assert value.getexif()[274] == 6


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_an_animation_the_first_frame(form: str) -> None:
    frames = [Image.new("RGB", (6, 5), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    options = {"lossless": True} if form == "WEBP" else {}
    value = decode_picture(encoded(frames[0], form, save_all=True, append_images=frames[1:], **options))
    assert value.convert("RGB").getpixel((0, 0)) == (250, 0, 0)


def test_arrays_come_back_and_objects_are_refused() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(4, dtype=">f4"))
    value = decode_sample(buffer.getvalue())
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.dtype(">f4")
    buffer = io.BytesIO()
    np.save(buffer, np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        decode_sample(buffer.getvalue())
    with pytest.raises(ValueError):
        decode_sample(b"\x93NUMPY\x01\x00")


def test_empty_and_foreign_files_fail_in_the_loader_only(tmp_path: Path) -> None:
    dataset = one_file(tmp_path, "a.png", b"")
    assert dataset.read(0) == b""
    with pytest.raises(UnidentifiedImageError, match="it is empty"):
        dataset.loader(b"")
    with pytest.raises(UnidentifiedImageError, match=r"its 9 bytes start with b'no pictu'$"):
        dataset.loader(b"no pictur")


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_truncated_picture_fails_in_the_loader(form: str) -> None:
    data = encoded(noise("RGB", (64, 64)), form)
    with pytest.raises((OSError, SyntaxError)):
        decode_picture(data[: len(data) // 2])


def test_a_decompression_bomb_is_refused() -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    with pytest.raises(Image.DecompressionBombError):
        decode_picture(bomb)


def test_formats_that_run_programs_are_not_tried() -> None:
    assert not {"EPS", "WMF", "HDF5"} & set(picture_formats())
    assert not {b".eps", b".ps", b".pdf", b".mpg", b".h5"} & sample_suffixes()
    assert {b".png", b".jpg", b".jpeg", b".webp", b".tif", b".bmp", b".gif", b".npy"} <= sample_suffixes()
    with pytest.raises(UnidentifiedImageError):
        decode_picture(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")


def test_what_is_no_file_is_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "ok.png").write_bytes(encoded(noise("L")))
    os.mkfifo(tmp_path / "fifo.png")
    with socket.socket(socket.AF_UNIX) as listener:
        short = os.path.relpath(tmp_path / "socket.png")
        if len(short) > 100:
            pytest.skip("the temporary folder's name is too long for a socket")
        listener.bind(short)
        os.symlink("/dev/null", tmp_path / "device.png")
        dataset = open_dataset(tmp_path)
        failures: list[str] = []

        def read_all() -> None:
            for index in range(len(dataset)):
                try:
                    dataset[index]
                except OSError as error:
                    failures.append(str(error.strerror))

        reader = threading.Thread(target=read_all, daemon=True)
        reader.start()
        reader.join(10)
        assert not reader.is_alive()
    assert failures == [f"is a {kind}, not a file" for kind in ("character device", "FIFO", "socket")]


def test_files_of_one_folder_are_opened_as_each_alone(tmp_path: Path) -> None:
    (tmp_path / "ok.png").write_bytes(b"data")
    os.symlink("ok.png", tmp_path / "link.png")
    os.mkfifo(tmp_path / "fifo.png")
    os.symlink("/proc/self/environ", tmp_path / "system.png")
    os.symlink("/proc/self", tmp_path / "folder")
    opener = FolderOpener()
    for name in ("ok.png", "link.png"):
        with opener.open(os.fsencode(tmp_path / name)) as file:
            assert file.readall() == b"data"
    for name in ("fifo.png", "system.png", "folder/environ", "missing.png", "ok.png\0"):
        path = os.fsencode(tmp_path / name)
        with pytest.raises(OSError) as alone:
            open_file(path)
        with pytest.raises(OSError) as together:
            opener.open(path)
        assert (together.value.errno, together.value.strerror) == (alone.value.errno, alone.value.strerror)


def test_a_file_that_is_gone_or_forbidden_fails_on_read(tmp_path: Path) -> None:
    dataset = one_file(tmp_path, "a.png", encoded(noise("L")))
    os.remove(tmp_path / "a.png")
    with pytest.raises(FileNotFoundError):
        dataset.read(0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_fails_on_read(tmp_path: Path) -> None:
    dataset = one_file(tmp_path, "a.png", encoded(noise("L")))
    os.chmod(tmp_path / "a.png", 0)
    with pytest.raises(PermissionError):
        dataset.read(0)
