"""Where a generator keeps its state in memory, so that one comparison of bytes shows that nothing was drawn.

Every draw moves the position of a Mersenne Twister; one that comes back to its position has another array, in all its
words. So the position is compared, and a few words of the array: all of them would take half of the processor's first cache.
Asking a generator for its state copies kilobytes and makes hundreds of Python objects. A sample of most pipelines draws
nothing. Each place is proved before it is used; a generator whose memory is not known is asked for its state.
"""

from __future__ import annotations

import _random
import ctypes
import functools
import os
import random
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit.values import native as loops

_WORDS = 624
_TWISTER_BYTES = _WORDS * 4 + 4
#: Behind its head, a Python object of torch's Generator has a pointer to the generator.
_POINTER = object.__basicsize__
#: In torch's generator: seed, left, seeded and next lie before the array, the cached normal deviates after it.
_TORCH_BEFORE, _TORCH_AFTER = 20, 28
_TORCH_LARGEST_OFFSET = 512


@dataclass(frozen=True, slots=True)
class GeneratorMemory:
    """Addresses and sizes in a generator's state. While these bytes and `held` stay the same, so does the state."""

    regions: tuple[tuple[int, int], ...]
    #: What the memory belongs to; it must live as long as the addresses are used.
    owner: Any
    #: A dict and a key, or an object and an attribute, which hold another object where the bytes do not show a change.
    held: tuple[Any, str] | None = None
    #: The bytes are the whole state only while its small part has this length.
    small_bytes: int | None = None


class UnchangedMemory:
    """Tells whether any of several generators has changed since the last `remember`."""

    def __init__(self, memories: Sequence[GeneratorMemory]) -> None:
        regions = [region for memory in memories for region in memory.regions]
        self._places = struct.pack(f"={2 * len(regions)}Q", *(number for region in regions for number in region))
        self._bytes = bytearray(sum(size for _, size in regions))
        self._memories = tuple(memories)
        #: Each holder and key with what was found there; None where nothing is remembered.
        self._held: list[tuple[Any, str, Any]] | None = None

    def remember(self) -> None:
        """Take the bytes as they are now."""
        if not self._memories:
            return
        self._held = [(*memory.held, _object_at(*memory.held)) for memory in self._memories if memory.held is not None]
        loops.native.copy_memory(self._places, self._bytes)  # type: ignore[union-attr]

    def forget(self) -> None:
        """Let the next comparison fail."""
        self._held = None

    @property
    def content(self) -> tuple[bytes, bytearray, list[tuple[Any, str, Any]]] | None:
        """What `holds` compares: places, bytes, and held objects; None where nothing is remembered."""
        return None if self._held is None else (self._places, self._bytes, self._held)

    def holds(self) -> bool:
        """Return whether all bytes are what they were."""
        if self._held is None:
            return False
        return bool(loops.native.same_state(self._places, self._bytes, self._held))  # type: ignore[union-attr]


def _object_at(holder: Any, key: str) -> Any:
    return holder[key] if isinstance(holder, dict) else getattr(holder, key)


def memory_of(generator: Any) -> GeneratorMemory | None:
    """Return where a generator's state lies; None where it is not known."""
    if not hasattr(loops.native, "same_state"):  # not compiled, or from older sources
        return None
    if type(generator) in (random.Random, type(random._inst)):
        return _python_memory(generator)
    if type(generator) is torch.Generator and generator.device.type == "cpu":
        return _torch_memory(generator)
    if type(generator) is np.random.RandomState:
        return _legacy_memory(generator)
    return None


def twister_memory(generator: random.Random) -> Any:
    """Return the position and array of Python's generator where CPython keeps them, behind the head of the object.

    None where they are not there, which `getstate` decides: then the state must be asked for each time.
    """
    if sys.implementation.name != "cpython" or _random.Random.__basicsize__ < object.__basicsize__ + _TWISTER_BYTES:
        return None
    memory = (ctypes.c_char * _TWISTER_BYTES).from_address(id(generator) + object.__basicsize__)
    words = generator.getstate()[1]
    return memory if memory.raw == struct.pack("=i624I", words[-1], *words[:-1]) else None


def _python_memory(generator: random.Random) -> GeneratorMemory | None:
    if twister_memory(generator) is None:
        return None
    # The cached normal deviate is an attribute; the memory knows nothing of it.
    position = id(generator) + object.__basicsize__
    return GeneratorMemory(((position, 4), *_some_words(position + 4)), generator, (vars(generator), "gauss_next"))


def _legacy_memory(generator: Any) -> GeneratorMemory | None:
    bits = generator._bit_generator
    if type(bits).__name__ != "MT19937":
        return None
    # A cached normal deviate, which makes the small part longer, can be used up without any change of the twister.
    array = bits.ctypes.state_address
    regions = (*_some_words(array), (array + _WORDS * 4, 4))
    return GeneratorMemory(regions, bits, (generator, "_bit_generator"), small_bytes=4)


def _some_words(array: int) -> tuple[tuple[int, int], ...]:
    """Return four places of 64 bytes in a twister's array."""
    return tuple((array + _WORDS * number, 64) for number in range(4))


# -- torch ---------------------------------------------------------------------------------------


def _torch_memory(generator: torch.Generator) -> GeneratorMemory | None:
    """Return the generator behind the Python object, and the pointer to it: another one may be put in its place."""
    offset = _torch_offset()
    if offset is None:
        return None
    pointer = id(generator) + _POINTER
    return GeneratorMemory(
        ((pointer, 8), *_torch_regions(ctypes.c_uint64.from_address(pointer).value + offset)), generator
    )


def _torch_regions(array: int) -> tuple[tuple[int, int], ...]:
    after = (array + _WORDS * 4, _TORCH_AFTER)
    return ((array - _TORCH_BEFORE, _TORCH_BEFORE), *_some_words(array), after)


@functools.cache
def _torch_offset() -> int | None:
    """Return how far the array lies behind the start of torch's CPU generator, tried on one of our own."""
    try:
        trial = torch.Generator()
        trial.manual_seed(20_260_101)
        offset = _find_array(trial)
        if offset is None:
            return None
        start = ctypes.c_uint64.from_address(id(trial) + _POINTER).value + offset
        regions = [(ctypes.c_char * size).from_address(address) for address, size in _torch_regions(start)]
        return offset if _shows_every_change(trial, regions) else None
    except (OSError, RuntimeError, ValueError, AttributeError):
        return None


def _find_array(trial: torch.Generator) -> int | None:
    """Look for the words of the state, through the system: a wrong address is then an error and not a crash."""
    state = trial.get_state().numpy().tobytes()
    words = struct.pack(f"={_WORDS}I", *struct.unpack_from(f"={_WORDS}Q", state, 24))
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        found = os.pread(memory.fileno(), 8, id(trial) + _POINTER)
        (address,) = struct.unpack("=Q", found)
        content = os.pread(memory.fileno(), _TORCH_LARGEST_OFFSET + _WORDS * 4, address)
    offset = content.find(words)
    return offset if offset >= _TORCH_BEFORE else None


def _shows_every_change(trial: torch.Generator, regions: Sequence[Any]) -> bool:
    """Try draws of every kind: wherever the state changes the bytes must change, also where a cached deviate is used up."""
    small, large = torch.empty(1), torch.empty(700)
    draws: list[Callable[[], Any]] = [
        lambda: small.normal_(generator=trial),
        lambda: small.normal_(generator=trial),
        lambda: small.uniform_(generator=trial),
        lambda: torch.empty(1, dtype=torch.float64).normal_(generator=trial),
        lambda: torch.empty(1, dtype=torch.float64).normal_(generator=trial),
        lambda: torch.randint(9, (1,), generator=trial),
        lambda: torch.randperm(5, generator=trial),
        lambda: large.normal_(generator=trial),
        lambda: large.uniform_(generator=trial),
        lambda: torch.empty(1).log_normal_(generator=trial),
        lambda: torch.empty(1).log_normal_(generator=trial),
        lambda: trial.manual_seed(7),
        lambda: trial.set_state(torch.Generator().get_state()),
    ]
    before = (trial.get_state().numpy().tobytes(), [region.raw for region in regions])
    for draw in draws:
        draw()
        now = (trial.get_state().numpy().tobytes(), [region.raw for region in regions])
        if now[0] != before[0] and now[1] == before[1]:
            return False
        before = now
    return True
