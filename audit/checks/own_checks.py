"""Checks of one's own that are single Python files: `[checks] paths` in the configuration, and `--checks FILE.py`.

A file that the user names runs, as with `--pipeline`. A configuration lies in the working directory and may come from
anybody, so the files that only it names run with `--trust` alone. Nothing is skipped silently: a gate that leaves out
one of its rules would be worse than none.
"""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence

from audit.checks.base import Check
from audit.checks.registry import CHECKS
from audit.config import Settings
from audit.errors import CodeNotTrusted, UsageError
from audit.usercode import load_module


def own_checks(
    content: Settings, path: str | None, named: Sequence[str] = (), *, trust: bool = False
) -> list[type[Check]]:
    """Return the checks of the files that the user named and of those that a configuration names.

    Raise CodeNotTrusted if the configuration names a file that the user did not name, unless `trust` is set.
    """
    given = _expand_patterns(named, "", "--checks")
    listed = _expand_patterns(_paths(content, path), os.path.dirname(path or ""), f"paths of [checks] in {path}")
    chosen = {os.path.realpath(file) for file in given}
    unnamed = [file for file in listed if os.path.realpath(file) not in chosen]
    if unnamed and not trust:
        raise CodeNotTrusted(
            f"This would execute {', '.join(unnamed)}, named by {path}.",
            hint="Read the code first. If you trust it, add --trust (trust=True in Python), or name each file with "
            "--checks FILE.py.",
            files=unnamed,
        )
    return _load([*given, *unnamed])


def _paths(content: Settings, path: str | None) -> list[str]:
    tables = content.get("checks")
    found = tables.get("paths", []) if isinstance(tables, Mapping) else []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UsageError(
            f"paths of [checks] in {path or 'the configuration'} must be a list of texts, got {found!r}.",
            hint='Write paths = ["checks/*.py"].',
        )
    return found


def _expand_patterns(patterns: Iterable[str], folder: str, where: str) -> list[str]:
    """Return the files that some patterns name, each once; raise UsageError for a pattern without any."""
    files: dict[str, str] = {}
    for pattern in patterns:
        whole = os.path.join(folder, pattern)
        found = [whole] if os.path.isfile(whole) else sorted(filter(os.path.isfile, glob.glob(whole, recursive=True)))
        if not found:
            raise UsageError(f"There is no file {whole}, named by {where}.", hint="Correct the path, or remove it.")
        files |= {os.path.realpath(file): file for file in found}
    return list(files.values())


def _load(files: Iterable[str]) -> list[type[Check]]:
    found: dict[str, type[Check]] = {}
    for file in files:
        for check in _checks_of(file):
            if check.name in found or check.name in CHECKS:
                raise UsageError(
                    f"{file} has a check called {check.name!r}, a name that another check already has.",
                    hint="Give it a different name.",
                )
            found[check.name] = check
    return list(found.values())


def _checks_of(file: str) -> list[type[Check]]:
    module = load_module(file, UsageError)
    checks = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, Check)
        and thing.__module__ == module.__name__
        and not inspect.isabstract(thing)
    ]
    if not checks:
        raise UsageError(
            f"{file} has no check.", hint="Define a subclass of audit.checks.base.Check with a name and a `run` method."
        )
    for check in checks:
        for attribute in ("name", "description"):
            if not isinstance(getattr(check, attribute, None), str):
                raise UsageError(f"The check {check.__name__} in {file} has no {attribute}.", hint="Give it one.")
    return checks
