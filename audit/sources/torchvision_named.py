"""A dataset that torchvision knows by name: `torchvision:CIFAR10?root=data&train=false`.

The object is returned as torchvision built it. It refuses to download, which can mean gigabytes.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import urllib.parse
from typing import Any

from audit.errors import DatasetError
from audit.sources.base import Options

description = "torchvision:NAME?key=value, a dataset of torchvision"

_PREFIX = "torchvision:"
#: Arguments of datasets that are paths.
path_options = ("root", "annFile", "annotation_path")
_WORDS = {"true": True, "false": False, "none": None}


def recognise(spec: str) -> bool:
    """Return whether it starts with torchvision:."""
    return spec.startswith(_PREFIX)


def open_source(spec: str, options: Options) -> Any:
    """Return torchvision's dataset of that name, built with the arguments and the transforms."""
    from torchvision import datasets

    name, _, query = spec.removeprefix(_PREFIX).partition("?")
    known = [key for key in datasets.__all__ if inspect.isclass(getattr(datasets, key, None))]
    if name not in known:
        raise _unknown_name_error(name, known)
    arguments = _parse(query, spec)
    if arguments.get("download"):
        raise DatasetError(
            f"{spec} requests a download, but audit does not download.", hint="Download it first, then remove download."
        )
    build = getattr(datasets, name)
    parameters = inspect.signature(build).parameters
    _check(name, arguments, parameters)
    for key, value in (("transform", options.transform), ("target_transform", options.target_transform)):
        if value is not None and key in parameters:
            arguments[key] = value
    try:
        return build(**arguments)
    except Exception as error:  # each dataset checks its files in its own way
        reason = " ".join(str(error).split()).replace("You can use download=True to download it", "").strip()
        raise DatasetError(
            f"torchvision cannot open {spec}: {type(error).__name__}: {reason}",
            hint="Check root and the other arguments; files must have been downloaded before.",
        ) from error


def _unknown_name_error(name: str, known: list[str]) -> DatasetError:
    lower = {key.lower(): key for key in known}
    near = [lower[key] for key in difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.5)]
    hint = f"Did you mean {', '.join(near)}?" if near else "See torchvision.datasets for the names."
    return DatasetError(f"torchvision has no dataset called {name!r}.", hint=hint).as_usage()


def _parse(query: str, spec: str) -> dict[str, Any]:
    try:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise DatasetError(
            f"The arguments of {spec} cannot be read: {error}.", hint="Write them as ?key=value&key=value."
        ) from None
    return {key: _value(text) for key, text in pairs}


def _value(text: str) -> Any:
    """Return a number, tuple, true, false or none if it is written as one; otherwise the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check(name: str, arguments: dict[str, Any], parameters: Any) -> None:
    """Raise DatasetError if the arguments do not fit the signature."""
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [key for key in arguments if key not in parameters]
    if unknown and not free:
        raise DatasetError(
            f"torchvision's {name} takes no argument {unknown[0]!r}.", hint=f"It takes {', '.join(parameters)}."
        )
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in variable and key not in arguments
    ]
    if needed:
        raise DatasetError(
            f"torchvision's {name} needs {', '.join(needed)}.", hint=f"Write torchvision:{name}?{needed[0]}=…"
        )
