"""Archives that are not what they say are refused before they are loaded."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from audit.errors import ModelError
from audit.models.archives import check_archive


def save(path: Path) -> Path:
    torch.save({"weight": torch.arange(4096.0)}, path)
    return path


def test_a_checkpoint_of_torch_is_sound(tmp_path: Path) -> None:
    check_archive(save(tmp_path / "a.pt"))


def test_a_checkpoint_that_was_saved_without_checksums_is_sound(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = save(tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(path) as archive:
        assert {member.CRC for member in archive.infolist()} == {0}
    check_archive(path)


def test_a_flipped_bit_in_the_weights_is_found(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt")
    data = bytearray(path.read_bytes())
    place = data.index(torch.arange(4096.0).numpy().tobytes()[400:480])
    data[place + 8] ^= 1
    path.write_bytes(data)
    assert torch.load(path, weights_only=True), "torch itself does not look"
    with pytest.raises(ModelError, match="damaged archive"):
        check_archive(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"x")
        with archive.open("a/data/0", "w", force_zip64=True) as member:
            for _ in range(200):
                member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="would unpack to 209,715,201"):
            check_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_a_member_that_lies_about_its_size(tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt")
    with zipfile.ZipFile(path) as archive:
        member = max(archive.infolist(), key=lambda info: info.file_size)
    data = bytearray(path.read_bytes())
    for claimed in (member.file_size * 1000, member.file_size - 4):
        # In the central directory, which readers believe: compressed size, then size.
        entry = data.rindex(b"PK\x01\x02", 0, data.rindex(member.filename.encode()))
        lying = bytearray(data)
        lying[entry + 20 : entry + 24] = lying[entry + 24 : entry + 28] = claimed.to_bytes(4, "little")
        path.write_bytes(lying)
        with pytest.raises(ModelError):
            check_archive(path)
