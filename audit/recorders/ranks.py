"""Ranks of a distributed loop, and which of their recordings belong together: each rank has a run of its own, and all of them the same group.

The ranks agree on the group through the key-value store that they met at, one by one: nothing is collective, so that a
rank that records nothing is never waited for.
"""

from __future__ import annotations

import contextlib
import secrets
from itertools import count

import torch.distributed as dist

#: The tag that holds the group's name.
GROUP = "distributed"

_recordings = count()


def rank() -> int | None:
    """Return this process's rank where training is distributed."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    return None


def rank_tags() -> dict[str, str]:
    """Return the tags for the run of this rank: `rank`, `world_size` and the group; nothing where there is only one."""
    own = rank()
    if own is None or dist.get_world_size() < 2:
        return {}
    tags = {"rank": str(own), "world_size": str(dist.get_world_size())}
    # The n-th recording of one rank belongs to the n-th of the others.
    key = f"audit/recording/{next(_recordings)}"
    with contextlib.suppress(RuntimeError, AttributeError, NotImplementedError):
        # Torch has no public name for it. Without one the ranks' runs stand alone.
        meeting = dist.distributed_c10d._get_default_store()
        tags[GROUP] = meeting.compare_set(key, "", secrets.token_hex(8)).decode()
    return tags
