"""Every check by name, in the order of their groups; plugins add theirs through the entry points `audit.checks`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from importlib import import_module
from pkgutil import iter_modules

from audit.checks.base import Check
from audit.errors import UsageError
from audit.registry import Registry

#: The folders with checks, in the order in which they are run and documented.
GROUPS = ("integrity", "values", "data", "model", "against", "yours")

CHECKS: Registry[type[Check]] = Registry("check", "audit.checks")


def _built_in() -> Iterator[type[Check]]:
    """Yield the class of each file in the folders of the groups; files without one are helpers."""
    for group in GROUPS:
        for file in iter_modules(import_module(f"audit.checks.{group}").__path__):
            module = import_module(f"audit.checks.{group}.{file.name}")
            yield from (
                found
                for found in vars(module).values()
                if isinstance(found, type) and issubclass(found, Check) and found.__module__ == module.__name__
            )


for _check in _built_in():
    CHECKS.add(_check.name, _check)


def require_check(name: str, own: Collection[str] = ()) -> None:
    """Raise UsageError with the nearest names unless there is a registered check, or one of `own`, of that name."""
    if name in own:
        return
    if name not in CHECKS and (near := difflib.get_close_matches(name, own, n=3)):
        raise UsageError(f"There is no check called {name!r}.", hint=f"Did you mean {', '.join(near)}?")
    _require_check(name, CHECKS.get(name))


def all_checks() -> list[type[Check]]:
    """Return every check, built-ins first."""
    try:
        return [_require_check(name, CHECKS.get(name)) for name in CHECKS]
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"A plugin's check cannot be loaded: {type(error).__name__}: {error}.",
            hint="Fix or uninstall the package that names it in its entry points audit.checks.",
        ) from error


def _require_check(name: str, found: object) -> type[Check]:
    if not isinstance(found, type) or not issubclass(found, Check) or getattr(found, "name", None) != name:
        raise UsageError(
            f"The entry point {name!r} of the group audit.checks gives {found!r}, which is not a check of that name.",
            hint="It must be a subclass of audit.checks.base.Check whose `name` is the entry point's.",
        )
    return found
