"""Why workers that are spawned cannot be given a dataset: the attribute that does not pickle, by name."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import DataLoader

from audit.errors import UsageError

_DEEPEST = 5


def why_not_picklable(loader: DataLoader[Any]) -> UsageError | None:
    """Return the error that says what of the user's own does not pickle; None when all of it does."""
    for part in ("dataset", "collate_fn", "worker_init_fn"):
        value = getattr(loader, part, None)
        problem = _problem(value)
        if problem is None:
            continue
        path = _path(value, f"loader.{part}", 0)
        return UsageError(
            f"The workers cannot be started: {path} does not pickle ({problem}).",
            hint="Workers that are spawned get a copy of the dataset. Use a named function instead of a lambda, open "
            "files and connections in the worker, or use multiprocessing_context='fork'.",
        )
    return None


def _problem(value: Any) -> str | None:
    try:
        ForkingPickler(io.BytesIO()).dump(value)
    except Exception as error:
        if "through inheritance" in str(error):
            # A lock or a queue: it travels to a process that is being started, and only there.
            return None
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def _path(value: Any, path: str, depth: int) -> str:
    """Follow what fails to pickle down to the innermost thing that has a name."""
    if depth >= _DEEPEST:
        return path
    if isinstance(value, dict):
        inner = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        inner = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
    else:
        inner = [(f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
    for name, item in inner[:1000]:
        if _problem(item) is not None:
            return _path(item, name, depth + 1)
    return path
