"""Broken pictures and checkpoints: each gives a picture or an error, a sentence for checkpoints; none runs code, ends the process or hangs."""

from __future__ import annotations

import io
import pickle
import random
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from audit.errors import AuditError
from audit.models import load
from audit.sources.decode import decode_picture
from bench.campaign.trial import Trial

GOAL = 10_000
COUNTS = "broken pictures and checkpoints"
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "ICO", "SGI", "PCX", "JPEG2000", "AVIF")
_SLOW = 20.0


class Canary:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path(self.path), "unpickled")


def run(trial: Trial) -> None:
    ran = trial.folder / "RAN"
    pictures, checkpoints = _pictures(), _checkpoints(trial.folder, ran)
    while trial.more():
        begun = time.monotonic()
        if trial.tried % 4:
            _picture(trial, _break(trial.chance.choice(pictures), trial.chance))
        else:
            name, data = trial.chance.choice(checkpoints)
            _checkpoint(trial, trial.folder / f"broken{name}", _break(data, trial.chance))
        if ran.exists():
            trial.fail(f"try {trial.tried}: a checkpoint executed code")
            ran.unlink()
        if time.monotonic() - begun > _SLOW:
            trial.fail(f"try {trial.tried}: it took {time.monotonic() - begun:.0f} s")
        trial.tried += 1


def _picture(trial: Trial, data: bytes) -> None:
    try:
        decode_picture(data)
        trial.counts["pictures that decode all the same"] += 1
    except Exception:  # a recorded run makes a failed row of whatever Pillow raises
        trial.counts["pictures that are refused"] += 1


def _checkpoint(trial: Trial, path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        load(str(path), builder=lambda: nn.Linear(3, 2))
        trial.counts["checkpoints that load all the same"] += 1
    except AuditError:
        trial.counts["checkpoints that are refused"] += 1
    except Exception as error:  # anything but a sentence is a fault
        trial.fail(f"try {trial.tried}: {path.suffix}: {type(error).__name__}: {error}")


def _pictures() -> list[bytes]:
    found = []
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    for name in _FORMATS:
        out = io.BytesIO()
        try:
            Image.fromarray(pixels).save(out, name)
        except (OSError, KeyError, ValueError):
            continue  # this Pillow cannot write it
        found.append(out.getvalue())
    return found


def _checkpoints(folder: Path, ran: Path) -> list[tuple[str, bytes]]:
    state = nn.Linear(3, 2).state_dict()
    found = []
    for name, content, options in (
        (".pt", state, {}),
        (".pt", {"state_dict": state, "epoch": 3, "classes": ["a", "b"]}, {}),
        (".pt", {"state_dict": state, "extra": Canary(ran)}, {}),
        (".pt", state, {"_use_new_zipfile_serialization": False}),
        (".pt", {"extra": Canary(ran)}, {"_use_new_zipfile_serialization": False}),
    ):
        out = io.BytesIO()
        torch.save(content, out, **options)
        found.append((name, out.getvalue()))
    found.append((".pkl", pickle.dumps(Canary(ran))))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Canary(ran)))
        archive.writestr("model/data/0", bytes(10**6))
    found.append((".pt", out.getvalue()))
    from safetensors.torch import save

    found.append((".safetensors", save(state)))
    return found


def _break(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed)) if changed else 0
        kind = chance.randrange(6)
        if not changed:
            return b""
        if kind == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed = changed[:at]
        elif kind == 2:
            changed[at : at + 16] = chance.randbytes(min(16, len(changed) - at))
        elif kind == 3:
            changed[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 4:
            del changed[at : at + chance.randrange(1, 64)]
        else:
            changed[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)))[
                : len(changed) - at
            ]
    return bytes(changed)
