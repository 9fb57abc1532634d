"""Which modules test files import: one process imports them, and the processes that run tests are forked from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

#: Packages that tests of several files import while they run. They import wandb, which takes longer the more modules there are.
SLOW_PACKAGES = ("timm",)
#: Ray ends a process that was forked after Ray was imported.
_NEW_INTERPRETER = re.compile(r"/engines/ray/")
#: What a file imports before any of its tests runs.
_IMPORT = re.compile(
    r"^(?:from ([\w.]+) import |import ([\w.]+)|(?:\w+ = )?pytest\.importorskip\(\"([\w.]+)\")", re.MULTILINE
)


def test_files(config: pytest.Config) -> list[Path]:
    """Return the files that the arguments of pytest name, and those in the folders that they name."""
    places = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]


def modules_of(files: Iterable[Path]) -> list[str]:
    """Return the modules that the files import, in the order of the files; none of files that need a new interpreter."""
    usable = (file for file in files if not _NEW_INTERPRETER.search(file.as_posix()))
    found = (match for file in usable for match in _IMPORT.finditer(file.read_text()))
    return [*dict.fromkeys(name for match in found for name in match.groups() if name and name != "__future__")]
