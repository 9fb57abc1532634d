"""Names of datasets, pipelines and models that still mean the same in another working directory."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote_plus

from audit.sources.base import recognise_dataset


def absolute_dataset(spec: str) -> str:
    """Return a name that still means the same dataset in another working directory."""
    text, kind = recognise_dataset(spec)
    prefix = getattr(kind, "path_prefix", None)
    keys = getattr(kind, "path_options", ())
    if prefix is None and not keys:
        return absolute_spec(text)
    name, mark, query = text.removeprefix(prefix or "").partition("?")
    options = [option.partition("=") for option in query.split("&")]
    query = "&".join(
        f"{key}{sign}{quote(_to_absolute_path(unquote_plus(value)), safe='/') if key in keys else value}"
        for key, sign, value in options
    )
    return f"{prefix}{_to_absolute_path(name)}{mark}{query}" if prefix is not None else f"{name}{mark}{query}"


def absolute_spec(spec: str) -> str:
    """Return a path, or `PATH:name`, that still means the same in another directory; other names stay as they are."""
    path, colon, name = spec.rpartition(":")
    if not os.path.exists(spec) and colon and os.path.exists(path):
        return f"{os.path.abspath(path)}:{name}"
    return os.path.abspath(spec) if os.path.exists(spec) else spec


def _to_absolute_path(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))
