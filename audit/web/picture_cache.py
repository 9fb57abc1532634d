"""Small pictures, kept for a while; and the source file as one.

A source file is shown only while it has the digest that was recorded, so that no address, and no store that
somebody sent, can be made to show another file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from audit.lineage.trace import Trace
from audit.report.html.previews import EncodedPicture, encode_bytes
from audit.sources.files import size_of

_MOST_KEPT = 4_000
_LARGEST_SOURCE = 64 * 2**20


class Pictures:
    """Encoded pictures by what they show."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, EncodedPicture | None] = OrderedDict()
        self._coming: dict[Hashable, Future[None]] = {}

    def get(self, key: Hashable, make: Callable[[], EncodedPicture | None]) -> EncodedPicture | None:
        """Return the picture of that key: cached, pending from `expect`, or created now."""
        with self._lock:
            coming = self._coming.get(key)
        if coming is not None:
            coming.exception()  # waits; if it failed, the picture is created here instead
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        self.put(key, made)
        return made

    def put(self, key: Hashable, picture: EncodedPicture | None) -> None:
        """Store a picture in the cache."""
        with self._lock:
            self._kept[key] = picture
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    def expect(self, keys: list[Hashable], future: Future[None]) -> None:
        """Mark pictures as pending, so that `get` waits for them instead of creating them again."""
        with self._lock:
            self._coming.update(dict.fromkeys(keys, future))

        def forget_coming(_: object) -> None:
            with self._lock:
                for key in keys:
                    self._coming.pop(key, None)

        future.add_done_callback(forget_coming)


def source_picture(trace: Trace) -> EncodedPicture | None:
    """Return the source file, if it is a picture and its bytes are unchanged."""
    path = trace.source_path
    if path is None or not trace.sample["source_digest"]:
        return None
    if max(trace.sample["source_bytes"] or 0, size_of(path)) > _LARGEST_SOURCE:
        return None
    try:
        return encode_bytes(trace.read_source())
    except OSError:
        return None
