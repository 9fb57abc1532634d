"""Random number generators whose state can be taken and put back: torch's, numpy's and Python's, global or held by objects.

A Mersenne Twister's state is an array that changes once in 624 draws and a position that changes with each, so the
array is kept apart. Taking a state draws nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit.recorders.randomness.generator_memory import GeneratorMemory, memory_of, twister_memory
from audit.recorders.randomness.generator_search import GeneratorPlace, GeneratorSearch

#: Where the twister's array lies in torch's serialised CPU generator: after seed, left, seeded and next.
_TORCH_HEAD = 24
_TORCH_ARRAY = 624 * 8
_TWISTER_BYTES = 624 * 4 + 4


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """One generator's state: a small part, and for twisters the large array apart."""

    small: bytes
    block: bytes = b""

    @property
    def block_digest(self) -> str | None:
        """Names the array, so that it is stored once."""
        return hashlib.blake2b(self.block, digest_size=16).hexdigest() if self.block else None


class GeneratorSource:
    """One generator that can be read and set. `memory` is where its state lies, if that is known."""

    def __init__(
        self,
        name: str,
        take: Callable[[], GeneratorState],
        put: Callable[[GeneratorState], None],
        memory: GeneratorMemory | None = None,
    ) -> None:
        self.name = name
        self.take = take
        self.put = put
        self.memory = memory


def global_sources() -> list[GeneratorSource]:
    """Return torch's, numpy's and Python's global generators."""
    return [
        _torch_source("torch", torch.default_generator),
        _numpy_source(),
        _python_source("random", random._inst),
    ]


def list_held_sources(search: GeneratorSearch) -> list[GeneratorSource]:
    """Return the generators that a dataset or its transforms hold, each under the path that leads to it."""
    return [_source(place) for place in search.places]


def _source(place: GeneratorPlace) -> GeneratorSource:
    name, generator = f"held:{place.path}", place.generator
    if isinstance(generator, random.Random):
        return _python_source(name, generator)
    if isinstance(generator, torch.Generator):
        return _torch_source(name, generator)
    if isinstance(generator, np.random.RandomState):
        memory = memory_of(generator)
        return GeneratorSource(name, lambda: _take_legacy(generator), lambda s: _put_legacy(generator, s), memory)
    if isinstance(generator, np.random.SeedSequence):
        return GeneratorSource(name, lambda: _take_sequence(generator), lambda s: _put_sequence(generator, s))
    bits = getattr(generator, "bit_generator", generator)
    return GeneratorSource(name, lambda: _take_bits(bits), lambda s: _put_bits(bits, s))


# -- torch ---------------------------------------------------------------------------------------


def _torch_source(name: str, generator: torch.Generator) -> GeneratorSource:
    """Return a source that gives the same object while the state does not change: comparing it costs nothing."""
    last: tuple[bytes, GeneratorState] | None = None

    def take() -> GeneratorState:
        nonlocal last
        data = generator.get_state().numpy().tobytes()
        if last is None or last[0] != data:
            last = (data, _split_torch(generator, data))
        return last[1]

    return GeneratorSource(name, take, lambda state: _put_torch(generator, state), memory_of(generator))


def _split_torch(generator: torch.Generator, data: bytes) -> GeneratorState:
    if generator.device.type != "cpu" or len(data) < _TORCH_HEAD + _TORCH_ARRAY:
        return GeneratorState(data)
    end = _TORCH_HEAD + _TORCH_ARRAY
    return GeneratorState(data[:_TORCH_HEAD] + data[end:], data[_TORCH_HEAD:end])


def _put_torch(generator: torch.Generator, state: GeneratorState) -> None:
    data = state.small
    if state.block:
        data = state.small[:_TORCH_HEAD] + state.block + state.small[_TORCH_HEAD:]
    generator.set_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))


# -- numpy ---------------------------------------------------------------------------------------


def _numpy_source() -> GeneratorSource:
    """Return numpy's source. Its own `get_state` takes 0.1 ms, so it is called only when the twister's memory has changed.

    A cached normal deviate can be used up without any change there: while one is cached, the slow way is taken.
    """
    legacy = np.random.mtrand._rand
    last: tuple[bytes, GeneratorState] | None = None
    memory: tuple[Any, Any] | None = None

    def take() -> GeneratorState:
        nonlocal last, memory
        bits = legacy._bit_generator
        if type(bits).__name__ != "MT19937":
            return _take_legacy(legacy)
        if memory is None or memory[0] is not bits:
            memory = bits, (ctypes.c_char * _TWISTER_BYTES).from_address(bits.ctypes.state_address)
        raw = memory[1].raw
        if last is not None and last[0] == raw and len(last[1].small) == 4:
            return last[1]
        last = (raw, _take_legacy(legacy))
        return last[1]

    def put(state: GeneratorState) -> None:
        nonlocal last
        # A deviate may be cached now, of which the twister's memory says nothing.
        last = None
        _put_legacy(legacy, state)

    return GeneratorSource("numpy", take, put, memory_of(legacy))


def _take_legacy(generator: Any) -> GeneratorState:
    name, keys, position, has_gauss, cached = generator.get_state()
    if name != "MT19937":
        return GeneratorState(json.dumps(generator.get_state(legacy=False), default=_to_json).encode())
    return GeneratorState(
        struct.pack("<i", position) + (struct.pack("<d", cached) if has_gauss else b""), keys.tobytes()
    )


def _put_legacy(generator: Any, state: GeneratorState) -> None:
    if not state.block:
        generator.set_state(json.loads(state.small))
        return
    (position,) = struct.unpack("<i", state.small[:4])
    gauss = struct.unpack("<d", state.small[4:])[0] if len(state.small) > 4 else 0.0
    keys = np.frombuffer(state.block, dtype=np.uint32)
    generator.set_state(("MT19937", keys, position, int(len(state.small) > 4), gauss))


def _take_bits(bits: Any) -> GeneratorState:
    content = bits.state
    block = b""
    if content["bit_generator"] == "MT19937":
        content["state"] = {"pos": content["state"]["pos"]} | {"key": (keys := content["state"]["key"]).dtype.str}
        block = keys.tobytes()
    sequence = getattr(bits, "seed_seq", None)
    if isinstance(sequence, np.random.SeedSequence):
        # Children are spawned from the sequence, which the bits know nothing of.
        content["sequence"] = sequence.state
    return GeneratorState(json.dumps(content, default=_to_json, sort_keys=True).encode(), block)


def _put_bits(bits: Any, state: GeneratorState) -> None:
    content = json.loads(state.small)
    sequence = content.pop("sequence", None)
    inner = content.get("state")
    if state.block and isinstance(inner, dict):
        inner["key"] = np.frombuffer(state.block, dtype=inner["key"])
    for holder in (content, inner if isinstance(inner, dict) else {}):
        for key, value in holder.items():
            if isinstance(value, list):
                holder[key] = np.array(value, dtype=np.uint64)
    if sequence is not None:
        bits.__setstate__((content, np.random.SeedSequence(**sequence)))
    else:
        bits.state = content


def _take_sequence(sequence: Any) -> GeneratorState:
    return GeneratorState(json.dumps(sequence.state, default=_to_json, sort_keys=True).encode())


def _put_sequence(sequence: Any, state: GeneratorState) -> None:
    """Set the state in place, the way that unpickling does it: a SeedSequence cannot be set otherwise."""
    sequence.__setstate__(type(sequence)(**json.loads(state.small)).__reduce__()[2])


def _to_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else int(value)


# -- random --------------------------------------------------------------------------------------


def _python_source(name: str, generator: random.Random) -> GeneratorSource:
    """Make a source that calls `getstate`, which makes 625 numbers, only when the twister's memory has changed."""
    last: tuple[Any, GeneratorState] | None = None
    memory = twister_memory(generator)

    def take() -> GeneratorState:
        nonlocal last
        # The cached normal deviate is an attribute; the memory knows nothing of it.
        found = (memory.raw, vars(generator)["gauss_next"]) if memory is not None else generator.getstate()
        if last is None or last[0] != found:
            last = (found, _pack(generator.getstate()))
        return last[1]

    if type(generator) not in (random.Random, type(random._inst)):
        return GeneratorSource(name, lambda: _take_special(generator), lambda state: _put_special(generator, state))
    return GeneratorSource(name, take, lambda state: _put_python(generator, state), memory_of(generator))


def _take_special(generator: random.Random) -> GeneratorState:
    """Return the state of a subclass, kept in `getstate` or in attributes, without what JSON cannot hold."""
    own = {
        key: value for key, value in vars(generator).items() if isinstance(value, (int, float, str, list, type(None)))
    }
    return GeneratorState(json.dumps({"state": generator.getstate(), "own": own}, default=str, sort_keys=True).encode())


def _put_special(generator: random.Random, state: GeneratorState) -> None:
    content = json.loads(state.small)
    found = content["state"]
    generator.setstate(_tuples(found))
    vars(generator).update(content["own"])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _pack(found: Any) -> GeneratorState:
    version, words, gauss = found
    tail = struct.pack("<d", gauss) if gauss is not None else b""
    return GeneratorState(struct.pack("<ii", version, words[-1]) + tail, struct.pack("<624I", *words[:-1]))


def _put_python(generator: random.Random, state: GeneratorState) -> None:
    version, position = struct.unpack("<ii", state.small[:8])
    gauss = struct.unpack("<d", state.small[8:])[0] if len(state.small) > 8 else None
    generator.setstate((version, (*struct.unpack("<624I", state.block), position), gauss))
