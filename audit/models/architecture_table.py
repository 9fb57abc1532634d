"""The table of known architectures' fingerprints, so that recognising weights builds one model and not 1,400.

A fingerprint hashes parameter names, and names with shapes where the number of classes is blanked out. The table is a
hint that finds candidates: the caller builds the model and compares every shape, so a table that is older or newer than
the installed libraries can miss an architecture, but never gives a wrong one.
Rebuild it after upgrading torchvision or timm: `python -m audit.models.architecture_table`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from audit.models.building import SENTINEL, Architecture, Shapes, expected_shapes, timm_names, torchvision_names

TABLE = Path(__file__).with_name("architecture_table.json")
WITHOUT_AUXILIARY = ("googlenet", "inception_v3")  # their auxiliary heads may be absent from a checkpoint
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArchitectureSignature:
    """What the names and shapes of one architecture's weights look like, whatever its number of classes."""

    library: str
    name: str
    arguments: Mapping[str, Any]
    tensors: int
    names: str
    shapes: str
    heads: tuple[str, ...]  # the tensors whose first dimension is the number of classes
    tops: tuple[str, ...]  # the first components of the names, to find what is nearest

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.library, self.name, dict(self.arguments))


def names_digest(shapes: Iterable[str]) -> str:
    """Return the fingerprint of the parameter names."""
    return _digest(sorted(shapes))


def shapes_digest(shapes: Shapes, heads: Iterable[str]) -> str:
    """Return the fingerprint of names and shapes, without the first dimension of `heads`."""
    blank = set(heads)
    return _digest(f"{name} {(-1, *shape[1:]) if name in blank else shape}" for name, shape in sorted(shapes.items()))


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def tops_of(shapes: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct first components of the names, in order."""
    return tuple(dict.fromkeys(name.split(".", 1)[0] for name in shapes))


def compute(architecture: Architecture) -> ArchitectureSignature:
    """Return the signature of an architecture, which is built here; without heads if it is not a classifier."""
    shapes = expected_shapes(architecture, SENTINEL)
    heads = tuple(name for name, shape in shapes.items() if shape and shape[0] == SENTINEL)
    return ArchitectureSignature(
        architecture.library,
        architecture.name,
        dict(architecture.arguments),
        len(shapes),
        names_digest(shapes),
        shapes_digest(shapes, heads),
        heads,
        tops_of(shapes),
    )


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return content


@lru_cache(maxsize=1)
def table() -> tuple[ArchitectureSignature, ...]:
    """Return every signature of the shipped table, torchvision's first."""
    return tuple(
        ArchitectureSignature(library, name, arguments, tensors, names, shapes, tuple(heads), tuple(tops))
        for library, name, arguments, tensors, names, shapes, heads, tops in _content()["rows"]
    )


def is_current(library: str) -> bool:
    """Return whether the table was made with the installed version of a library; asking does not import it."""
    return bool(_content()["versions"].get(library) == _find_installed_version(library))


def _find_installed_version(library: str) -> str | None:
    try:
        return version(library).partition("+")[0]  # without the build, such as +cpu
    except PackageNotFoundError:
        return None


def known_architectures() -> frozenset[tuple[str, str]]:
    """Return the library and name of every architecture in the table."""
    return frozenset((row.library, row.name) for row in table())


def list_timm_names() -> tuple[str, ...]:
    """Return every timm architecture; from the table where it is exact, because importing timm takes seconds."""
    # Once timm is imported, the user may have registered architectures in it.
    if "timm" in sys.modules or not is_current("timm"):
        return timm_names()
    return tuple(dict.fromkeys(row.name for row in table() if row.library == "timm"))


def architectures() -> Iterator[Architecture]:
    """Yield every architecture, in each variant, that the installed libraries offer."""
    for name in torchvision_names():
        yield Architecture("torchvision", name)
        if name in WITHOUT_AUXILIARY:
            yield Architecture("torchvision", name, {"aux_logits": False})
    for name in timm_names():
        yield Architecture("timm", name)


def rebuild(path: Path = TABLE) -> int:
    """Write the table for the installed libraries and return its number of rows. This takes minutes."""
    lines = []
    for architecture in architectures():
        try:
            row = compute(architecture)
        except Exception as error:
            _log.warning("%s cannot be built: %s", architecture, error)
            continue
        fields = [row.library, row.name, dict(row.arguments), row.tensors, row.names, row.shapes, row.heads, row.tops]
        lines.append(json.dumps(fields, separators=(",", ":")))
    versions = json.dumps({library: _find_installed_version(library) for library in ("torchvision", "timm")})
    path.write_text(f'{{"versions":{versions},"rows":[\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    _log.info("%d rows written to %s", rebuild(), TABLE)
