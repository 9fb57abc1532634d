"""Memory that the parts of one writer are made in, one after the other.

Memory that is used for the first time costs as much as several copies of it, so it is kept. It begins at a page: the kernel can
write it to the disk as it is (see `direct_write.py`).
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress

#: Linux's MADV_WIPEONFORK, which Python does not name: a forked process has zeros there.
_WIPE_ON_FORK = 18
#: What a Parquet file may have beyond the memory of its table: the footer, statistics, and the headers of its pages.
_EXTRA = 1 << 20
#: Memory of at least so many bytes is used in huge pages: the kernel takes longer to hand over a small page than it takes to fill it.
#: Smaller parts would only take more memory.
_LEAST_HUGE = 12 << 20


class PartBuffer:
    """Lends memory to one part at a time. Used by one thread at a time."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def reserve(self, size: int) -> memoryview:
        """Return memory for a part of a table with `size` bytes; what was lent before must no longer be in use."""
        wanted = size + size // 32 + _EXTRA
        if self._memory is None or len(self._memory) < wanted:
            self._memory = mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # Worker processes need none of it; without this, each page would be copied once after a fork. The range must stay
            # reserved in them (MADV_DONTFORK would free it): a worker that drops this object unmaps whatever lies there.
            if sys.platform == "linux":
                # A kernel may have been built without either.
                with suppress(OSError):
                    self._memory.madvise(_WIPE_ON_FORK)
                if wanted >= _LEAST_HUGE:
                    with suppress(OSError):
                        self._memory.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(self._memory)
