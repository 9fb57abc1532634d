"""The code that builds a dataset: named when a loop is recorded, imported when it is replayed.

It takes no arguments and returns a dataset like the recorded one. Only its name is stored, never the dataset: the
code stays where it is, like a pipeline's file. Its SHA-256 shows later whether it has changed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from audit.errors import UsageError
from audit.sources.base import Options
from audit.sources.python import open_source, parts_of
from audit.usercode import CodeFiles, digest_in_memory, find_code, import_from

Builder = str | Callable[[], Any]

_HINT = "Name a function that can be imported: builder='FILE.py:function', 'package.module:function', or the function itself."


def describe_builder(builder: Builder | None, split: str | None) -> dict[str, Any]:
    """Return the entry of a run's recipe for the builder of a split; it holds None if there is no builder."""
    if builder is None:
        return {"split": split, "builder": None}
    spec = builder if isinstance(builder, str) else _spell(builder)
    place, name = parts_of(spec)
    if place is None or name is None:
        raise UsageError(f"The builder {spec!r} does not name a function.", hint=_HINT)
    file = _file_of(place)
    if file is None or not os.path.isfile(file):
        raise UsageError(f"The builder {spec!r} cannot be found: there is no {place}.", hint=_HINT)
    loaded = sys.modules.get(place)
    if loaded is not None and not hasattr(loaded, name):
        raise UsageError(f"The builder {spec!r} cannot be found: {place} has no {name}.", hint=_HINT)
    if "." not in place or place.endswith(".py"):
        # A file can be found from any directory; a module of a package only as part of the package.
        spec = f"{file}:{name}"
    code = [{"module": one.module, "file": one.path, "sha256": digest_in_memory(one)} for one in _code(place, file)]
    return {"split": split, "builder": spec, "file": file, "sha256": code[0]["sha256"], "code": code[1:]}


def can_be_rebuilt(recipe: Mapping[str, Any]) -> bool:
    """Return whether a run stores how to build its dataset, so that missing outputs can be recomputed."""
    return recipe.get("kind") == "run" or bool(builders_of(recipe))


def builders_of(recipe: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the recipe entries of the run's datasets; none if no dataset has a builder."""
    found = recipe.get("builders")
    known = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return known if any(one.get("builder") for one in known) else []


def splits_of(builders: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the splits to build one after the other; only None for a run with one dataset."""
    if len(builders) < 2:
        return [None]
    splits = [one.get("split") for one in builders]
    for split in splits:
        if split is None or splits.count(split) > 1:
            raise UsageError(
                f"The run holds samples of several datasets{f' of split {split!r}' if split else ''}, and does not say to "
                "which dataset each sample belongs.",
                hint="Record each dataset with a different split: run.loader(…, split=…, builder=…).",
            )
        _choose_builder(builders, split)
    return splits


def build_dataset(builders: Sequence[Mapping[str, Any]], split: str | None) -> Any:
    """Return the newly built dataset of a split, or the only dataset of the run."""
    return open_source(str(_choose_builder(builders, split)["builder"]), Options())


def _choose_builder(builders: Sequence[Mapping[str, Any]], split: str | None) -> Mapping[str, Any]:
    chosen = builders if len(builders) == 1 else [one for one in builders if one.get("split") == split]
    if len(chosen) != 1 or not chosen[0].get("builder"):
        raise UsageError(
            f"The run does not store how the dataset of its split {split!r} is built.",
            hint=f"Pass the datasets: store.replay(run, dataset={{{split!r}: …}}), or record it with a builder.",
        )
    return chosen[0]


def file_of(spec: str) -> str:
    """Return the file of FILE.py or FILE.py:name."""
    return spec if spec.endswith(".py") else spec.rpartition(":")[0]


def _code(place: str, file: str) -> CodeFiles:
    """Return the builder's file and the local modules that it imports."""
    if not place.endswith(".py"):
        return find_code(place, file, is_package=os.path.basename(file) == "__init__.py")
    with import_from(os.path.dirname(file)):
        return find_code(os.path.splitext(os.path.basename(file))[0], file)


def _spell(builder: Callable[[], Any]) -> str:
    if not isinstance(builder, (FunctionType, type)) or not builder.__qualname__.isidentifier():
        raise UsageError(
            f"The builder {getattr(builder, '__qualname__', builder)!r} cannot be imported by name.", hint=_HINT
        )
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if builder.__module__ == "__main__" and main:
        return f"{os.path.abspath(main)}:{builder.__name__}"
    return f"{builder.__module__}:{builder.__name__}"


def _file_of(place: str) -> str | None:
    if place.endswith(".py"):
        return os.path.abspath(place)
    loaded = sys.modules.get(place)
    try:
        specification = importlib.util.find_spec(place) if loaded is None else None
    except (ImportError, ValueError):
        return None
    found = specification.origin if specification is not None else getattr(loaded, "__file__", None)
    return os.path.abspath(found) if found else None
