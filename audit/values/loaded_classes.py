"""Classes that are loaded already: a stored value becomes one of their objects without any of their code being run."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from types import MemberDescriptorType
from typing import Any


def find_class(module: str, qualname: str) -> type | None:
    """Return the class of that name; None where its module is not loaded, or has none of that name."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        # Not getattr: a module may have a __getattr__ that imports something.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) else None


def rebuild_dataclass(name: str, fields: dict[Any, Any]) -> Any:
    """Return the object that had these fields; the dict of them where its class is not loaded, or is another now."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found = find_class(".".join(parts[:cut]), ".".join(parts[cut:]))
        if found is None or not dataclasses.is_dataclass(found):
            continue
        if [field.name for field in dataclasses.fields(found)] != list(fields):
            break
        made = object.__new__(found)
        for key, value in fields.items():
            slot = inspect.getattr_static(found, key, None)
            if isinstance(slot, MemberDescriptorType):
                slot.__set__(made, value)
            else:
                vars(made)[key] = value
        return made
    return fields
