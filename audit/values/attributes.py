"""What an object of a user's own class carries beside its content: the attributes of a list, a mapping or a dataclass.

Attributes of tensors are not looked at: most operations drop them, and so does collating. Attributes that are objects (a tokenizer, the dataset) are not content of the value, and neither are cached properties.
"""

from __future__ import annotations

import enum
import functools
from collections import UserDict, defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from audit.values import dispatch, hashing

_PLAIN_TYPES: frozenset[type] = frozenset((list, tuple, set, frozenset, dict))


def digest_of_public(value: Any, content: Collection[str] = ()) -> str:
    """Return the digest of the public attributes of a container; an empty text where it has none.

    `content` names attributes that are content already.
    """
    if type(value) in _PLAIN_TYPES or hashing.version() < 3:
        return ""
    if type(value) is defaultdict:
        return dispatch.digest(getattr(value.default_factory, "__qualname__", None)) or ""
    held = getattr(value, "__dict__", None)
    if not held:
        return ""
    kept = {
        name: one
        for name, one in held.items()
        if not name.startswith("_")
        and name not in content
        and not _is_content(value, name, one)
        and not isinstance(getattr(type(value), name, None), functools.cached_property)
        and _is_data(one)
    }
    return (dispatch.digest(kept) or "") if kept else ""


def _is_content(value: Any, name: str, one: Any) -> bool:
    if isinstance(value, UserDict) or (isinstance(value, Mapping) and name == "data" and isinstance(one, Mapping)):
        return name == "data"
    # Some mappings have their items as attributes too.
    return isinstance(value, Mapping) and name in value and value[name] is one


def _is_data(one: Any) -> bool:
    return one is None or isinstance(one, enum.Enum) or dispatch.kind_of(one).name != "other"
