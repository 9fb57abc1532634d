"""The object that `run.loader` returns: the user's loader in everything but being iterated."""

from __future__ import annotations

from typing import Any

from audit.recorders.loop.loader_recording import LoaderRecording


class RecordedLoader:
    """Stands in for the user's loader; everything but iterating it is the loader's own.

    Attributes of the user's loader are reached through this object, so its own have a prefix that no loader uses.
    """

    def __init__(self, recording: LoaderRecording) -> None:
        self._audit_recording = recording

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._audit_recording.loader.__class__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_audit_"):
            raise AttributeError(name)
        recording = self._audit_recording
        if name == "_iterator":
            # A caller that ends persistent workers with it means those that work for this loop.
            return recording.iterator
        if name == "state_dict" and recording.keeps_state:
            return recording.save_state
        return getattr(recording.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_audit_"):
            object.__setattr__(self, name, value)
        elif name == "_iterator":
            self._audit_recording.iterator = value
        else:
            setattr(self._audit_recording.loader, name, value)

    def __bool__(self) -> bool:
        # A loader without a length is true; this object has the method in any case.
        return bool(self._audit_recording.loader)

    def __len__(self) -> int:
        return len(self._audit_recording.loader)

    def __repr__(self) -> str:
        return f"<recorded {self._audit_recording.loader!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, is the user's loader: a recording cannot be in two places.
        return (_return_unchanged, (self._audit_recording.loader,))

    def __iter__(self) -> Any:
        return self._audit_recording.iterate()


def _return_unchanged(loader: Any) -> Any:
    return loader
