"""The user's own code: `FILE.py`, `FILE.py:name` or `module:name`, a Dataset or a function that builds one.

The default name is `dataset`, or else the only Dataset that the file creates. The object is returned unchanged: a
`transform` is passed to a function that takes one, and put on nothing. The user names this code, so it runs without
further trust; what it raises is reported with its file and line.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
from types import ModuleType
from typing import Any

from audit.errors import DatasetError
from audit.sources.base import Options
from audit.sources.files import missing_path, to_printable
from audit.usercode import explain_user_errors, import_named, load_module

description = "a .py file or module:function that builds a Dataset"

_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[A-Za-z_]\w*))?", re.DOTALL)
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


def recognise(spec: str) -> bool:
    """Return whether it is FILE.py, FILE.py:name or module:name, and not the name of another existing file."""
    if _FILE.fullmatch(spec):
        return not os.path.isdir(spec)
    return _MODULE.fullmatch(spec) is not None and not os.path.exists(spec)


def open_source(spec: str, options: Options) -> Any:
    """Return the Dataset that the code builds."""
    if match := _FILE.fullmatch(spec):
        if not os.path.isfile(match["file"]):
            raise missing_path(match["file"])
        module = load_module(match["file"], DatasetError)
    else:
        match = _MODULE.fullmatch(spec)
        assert match is not None, "recognise has matched it"
        module = import_named(match["module"], DatasetError)
    return build(_find(module, match["name"], spec), spec, options)


def parts_of(spec: str) -> tuple[str | None, str | None]:
    """Return the file or module, and the name inside it; None for a missing part."""
    if match := _FILE.fullmatch(spec):
        return match["file"], match["name"]
    match = _MODULE.fullmatch(spec)
    return (match["module"], match["name"]) if match else (None, None)


def build(found: Any, spec: str, options: Options, **arguments: Any) -> Any:
    """Return the object itself if it is a Dataset, or else what it returns when called."""
    shown = to_printable(os.fsencode(spec))
    if is_dataset(found) and not inspect.isclass(found):
        return found
    if not callable(found):
        raise DatasetError(
            f"{shown} is a {type(found).__name__}, neither a Dataset nor a function that builds one.",
            hint="Pass a function that returns an object with __getitem__ and __len__.",
        )
    with explain_user_errors(f"Building the dataset {shown}", DatasetError):
        dataset = found(**_arguments(found, shown, options, arguments))
    if not is_dataset(dataset):
        raise DatasetError(
            f"{shown} returned a {type(dataset).__name__}, which is not a Dataset: it has no __getitem__.",
            hint="Return an object with __getitem__ and __len__, such as a torch.utils.data.Dataset.",
        )
    return dataset


def is_dataset(value: Any) -> bool:
    """Return whether it can be indexed as a Dataset; Python's built-in containers do not count."""
    return hasattr(type(value), "__getitem__") and not isinstance(value, (str, bytes, dict, list, tuple, type))


def _find(module: ModuleType, name: str | None, spec: str) -> Any:
    if name is None and hasattr(module, "dataset"):
        return module.dataset
    if name is not None and hasattr(module, name):
        return getattr(module, name)
    made = _dataset_names(module)
    if name is None and len(made) == 1:
        return vars(module)[made[0]]
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    listed = ", ".join(dict.fromkeys([*made, *own])) or "nothing"
    place = spec.removesuffix(f":{name}")
    near = difflib.get_close_matches(name or "dataset", [*made, *own], n=1)
    error = DatasetError(
        f"{to_printable(os.fsencode(place))} has no {name or 'dataset'!r}; it defines {listed}.",
        hint=(f"Did you mean {to_printable(os.fsencode(place))}:{near[0]}? " if near else "")
        + "Name the function that builds the Dataset `dataset`, or add :name.",
    )
    raise error.as_usage() if name else error


def _dataset_names(module: ModuleType) -> list[str]:
    """Return the names of the module's torch Datasets, or else of objects that can be indexed and are not tensors."""
    public = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    data = sys.modules.get("torch.utils.data")
    if data is not None and (proper := [key for key, value in public.items() if isinstance(value, data.Dataset)]):
        return proper
    sized = (key for key, value in public.items() if is_dataset(value) and hasattr(type(value), "__len__"))
    return [key for key in sized if not hasattr(public[key], "dtype")]


def _arguments(function: Any, shown: str, options: Options, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the function accepts; raise DatasetError if it needs others."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return given
    offered = dict(given)
    if options.transform is not None:
        offered["transform"] = options.transform
    if options.target_transform is not None:
        offered["target_transform"] = options.target_transform
    taken = {name: value for name, value in offered.items() if name in given or name in parameters}
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in optional and name not in taken
    ]
    if needed:
        raise DatasetError(
            f"The function {shown} cannot be called: it needs {', '.join(needed)}.",
            hint="Give its parameters defaults; or pass a function dataset(root) with --pipeline, and the root with "
            "--dataset.",
        )
    return taken
