"""MixUp and CutMix: which samples each place of a batch was mixed from.

torchvision's v2 transforms mix place i with place i - 1, the first with the last. How much is drawn in `make_params`, which
is observed here: as long as a recording is open, `make_params` of the class is replaced by one that reports the values and returns them.
For other ways of mixing the user calls `run.parents`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from audit.recorders.envelope import Weights

#: (weight of the place itself, size of the batch) of one mix.
Mix = tuple[float, int]


@dataclass(slots=True)
class MixCall:
    """One call of a mixing transform, as far as it is needed to mix once more: nothing is drawn for that."""

    mixer: Any
    tensor: torch.Tensor
    drawn: dict[str, Any]

    def mix(self) -> torch.Tensor:
        """Return what the call made of its tensor."""
        params = {"labels": None, "batch_size": len(self.tensor), **self.drawn}
        mixed: torch.Tensor = self.mixer.transform(self.tensor, params)
        return mixed


@dataclass(slots=True)
class CollateMixes:
    """The mixes that were made inside a collate function."""

    mixes: list[Mix] = field(default_factory=list)
    calls: list[MixCall] = field(default_factory=list)

    def is_result(self, value: Any, is_in_order: Callable[[torch.Tensor], bool]) -> bool:
        """Return whether a batch is what the calls made, one after the other, of a tensor that has the samples in order."""
        mixed: torch.Tensor | None = None
        for call in self.calls:
            is_expected = is_in_order(call.tensor) if mixed is None else torch.equal(call.tensor, mixed)
            if not is_expected:
                return False
            mixed = call.mix()
        return mixed is not None and isinstance(value, torch.Tensor) and torch.equal(value, mixed)


_HOME = "torchvision.transforms.v2"
_local = threading.local()
_listeners: list[Callable[[Mix], None]] = []
#: What collate functions that are running now have mixed, in any thread.
_observers: list[CollateMixes] = []
_originals: dict[type, Any] = {}


def install() -> None:
    """Observe the mixing transforms, if torchvision's v2 is loaded at all; a second call does nothing."""
    home = sys.modules.get(_HOME)
    for name in ("MixUp", "CutMix"):
        kind = getattr(home, name, None)
        if isinstance(kind, type) and kind not in _originals and "make_params" in vars(kind):
            original = vars(kind)["make_params"]
            _originals[kind] = original
            kind.make_params = _report_params(original)  # type: ignore[attr-defined]


def subscribe(listener: Callable[[Mix], None]) -> None:
    """Call `listener` with every mix that is made outside a collate function."""
    _listeners.append(listener)
    install()


def unsubscribe(listener: Callable[[Mix], None]) -> None:
    """Stop to call `listener`; after the last one the classes are as they were."""
    if listener in _listeners:
        _listeners.remove(listener)
    _restore_unless_used()


def _restore_unless_used() -> None:
    if not _listeners and not _observers:
        while _originals:
            kind, original = _originals.popitem()
            kind.make_params = original  # type: ignore[attr-defined]


@contextlib.contextmanager
def observe_mixes() -> Iterator[CollateMixes]:
    """Gather the mixes that are made inside, in this thread."""
    before = getattr(_local, "mixes", None)
    mixes = CollateMixes()
    _observers.append(mixes)
    install()
    _local.mixes = mixes
    try:
        yield mixes
    finally:
        _local.mixes = before
        _observers[:] = [other for other in _observers if other is not mixes]
        _restore_unless_used()


def _report_params(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_params(self: Any, flat_inputs: list[Any]) -> Any:
        drawn = original(self, flat_inputs)
        with contextlib.suppress(Exception):
            mix = float(drawn.get("lam", drawn.get("lam_adjusted"))), len(flat_inputs[0])
            _report_mix(mix, MixCall(self, flat_inputs[0], drawn))
        return drawn

    return make_params


def _report_mix(mix: Mix, call: MixCall) -> None:
    mixes: CollateMixes | None = getattr(_local, "mixes", None)
    if mixes is not None:
        mixes.mixes.append(mix)
        mixes.calls.append(call)
        return
    for listener in tuple(_listeners):
        listener(mix)


def weights(mixes: Sequence[Mix], count: int) -> Weights | None:
    """Return what each of `count` places was mixed from, after all the mixes; None when none of them was of this batch."""
    fitting = [weight for weight, size in mixes if size == count]
    if not fitting:
        return None
    places: list[dict[int, float]] = [{place: 1.0} for place in range(count)]
    for weight in fitting:
        places = [_blend(places[n], places[n - 1], weight) for n in range(count)]
    return [[(parent, share) for parent, share in sorted(place.items()) if share > 0] for place in places]


def _blend(own: dict[int, float], other: dict[int, float], weight: float) -> dict[int, float]:
    blended = {parent: share * weight for parent, share in own.items()}
    for parent, share in other.items():
        blended[parent] = blended.get(parent, 0.0) + share * (1.0 - weight)
    return blended
