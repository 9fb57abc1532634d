"""Find the kind of a file from its bytes, never from its name.

Nothing is loaded here and no code can run: only the first bytes and the member names of a zip archive are read.
"""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path

from audit.errors import ModelError
from audit.sources.files import nearest_path

_ACCEPTED_FORMATS = (
    "Give a file of weights (torch.save of a state dict or checkpoint, safetensors), TorchScript, "
    "an exported .pt2 program, an .onnx model, a Hugging Face folder, or module:function."
)
_KINDS: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"BM", "a BMP picture"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (a Keras model?)"),
    (b"GGUF", "a GGUF file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it stands for"),
    (b"\x08", "possibly an ONNX model, whose name must end in .onnx"),
)
# torch.save before its zip format: a pickle of this magic number comes first.
_LEGACY_TORCH = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."


def require_file(spec: str) -> Path:
    """Return the path of a regular, readable, non-empty file; raise ModelError for anything else."""
    path = Path(spec)
    if "://" in spec and not path.exists():  # it may hold a password, so it is not repeated
        raise ModelError(
            "A model must be a local file, not an address.", hint=f"Download it first. {_ACCEPTED_FORMATS}"
        )
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        reason = "There is no file" if isinstance(error, FileNotFoundError) else f"{_reason(error)}:"
        near = nearest_path(spec) if isinstance(error, FileNotFoundError) else ""
        hint = f"{near} {_ACCEPTED_FORMATS}" if near.startswith("Did you mean") else _ACCEPTED_FORMATS
        raise ModelError(f"{reason} {spec}.", hint=hint).as_usage() from None
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"{spec} is a directory, not a model file.", hint=_folder_hint(path))
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait forever
        raise ModelError(f"{spec} is not a regular file.", hint=_ACCEPTED_FORMATS)
    if status.st_size == 0:
        raise ModelError(f"{spec} is empty.", hint="Save or copy it again.")
    return path


def _folder_hint(path: Path) -> str:
    try:
        found = sorted(
            p.name for p in path.iterdir() if p.suffix in (".pt", ".pth", ".safetensors", ".ckpt", ".pt2", ".onnx")
        )
    except OSError:
        found = []
    if found:
        return f"It holds {', '.join(found[:5])}: pass one of them."
    return f"A folder of samples is passed with --dataset. {_ACCEPTED_FORMATS}"


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def head(path: Path, size: int = 64) -> bytes:
    """Return the first bytes of the file."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {_reason(error)}.", hint="Check its permissions.") from None


def digest_of(path: Path) -> str:
    """Return SHA-256 of the file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def members(path: Path) -> frozenset[str]:
    """Return the member names of a zip archive without torch's top folder; none if it is not a complete zip."""
    if not head(path, 4).startswith(b"PK\x03\x04"):
        return frozenset()
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(name.split("/", 1)[-1] for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError):
        return frozenset()  # the last one: a version of the format that Python does not know


def is_pickle(path: Path) -> bool:
    """Return whether this is a bare Python pickle of protocol 2 or later, torch's old format included."""
    first = head(path, 2)
    return len(first) == 2 and first[0] == 0x80 and 2 <= first[1] <= 5


def is_legacy_torch(path: Path) -> bool:
    """Return whether torch.save wrote this before its zip format, or with `_use_new_zipfile_serialization=False`."""
    return is_pickle(path) and head(path, 2 + len(_LEGACY_TORCH))[2:] == _LEGACY_TORCH


def unknown_format_error(path: Path) -> ModelError:
    """Return the error for a file of an unknown format, with a guess of what it is."""
    start = head(path)
    if start.startswith(b"PK\x03\x04"):
        if members(path):
            return ModelError(f"{path} is a zip archive, but not one that PyTorch wrote.", hint=_ACCEPTED_FORMATS)
        hint = "The file is probably incomplete: copy or save it again."
        return ModelError(f"{path} is a damaged or truncated zip archive.", hint=hint)
    for magic, kind in _KINDS:
        if start.startswith(magic):
            return ModelError(f"{path} is not a model file: it looks like {kind}.", hint=_ACCEPTED_FORMATS)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return ModelError(f"{path} is not a model file: it looks like a WebP picture.", hint=_ACCEPTED_FORMATS)
    return ModelError(f"{path} is not a model file: it looks like {_text_or_bytes(start)}.", hint=_ACCEPTED_FORMATS)


def _text_or_bytes(start: bytes) -> str:
    try:
        text = start.decode("utf-8", errors="strict").lstrip()
    except UnicodeDecodeError:
        return "binary data of an unknown format"
    if text[:1] in ("{", "["):
        return "JSON"
    return "text" if text.isprintable() or "\n" in text else "binary data of an unknown format"
