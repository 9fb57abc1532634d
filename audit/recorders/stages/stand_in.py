"""What sits in a slot while a visit is under way: the user's callable, and a visit that watches it.

Outside a visit, and in threads that have none, an StageStandIn does nothing but call.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audit.recorders.visit.visit import Visit

#: Its attribute `visit` is the visit under way in a thread.
CURRENT_VISIT = threading.local()


def current_visit() -> Visit | None:
    """Return the visit under way in this thread."""
    return getattr(CURRENT_VISIT, "visit", None)


def set_current_visit(visit: Visit | None) -> None:
    """Begin or end the visit of this thread."""
    CURRENT_VISIT.visit = visit


def _return_unchanged(target: Any) -> Any:
    return target


class StageStandIn:
    """Stands in for one callable; anything but a call goes to the callable itself."""

    __slots__ = ("_audit_call", "_audit_target")

    def __init__(self, target: Any, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_audit_target", target)
        object.__setattr__(self, "_audit_call", call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        visit = getattr(CURRENT_VISIT, "visit", None)
        if visit is None:
            return self._audit_target(*args, **kwargs)
        return self._audit_call(visit, self._audit_target, args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # isinstance() checks in a container or a dataset see the user's own class.
        return type(self._audit_target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._audit_target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._audit_target, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._audit_target, memo)

    def __reduce_ex__(self, _: Any) -> Any:
        # A copy is a copy of the user's callable.
        return (_return_unchanged, (self._audit_target,))

    def __iter__(self) -> Any:
        return iter(self._audit_target)

    def __bool__(self) -> bool:
        # `if self.transform:` asks for the length of an object that has none, unless this answers.
        return bool(self._audit_target)

    def __len__(self) -> int:
        return len(self._audit_target)

    def __getitem__(self, key: Any) -> Any:
        return self._audit_target[key]

    def __repr__(self) -> str:
        return repr(self._audit_target)
