"""All tensors that a model with several outputs returned, each under its port, sample by sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from audit import values
from audit.models.task_outputs import describe_output, looks_like_boxes
from audit.recorders.model.task_rows import TaskRows

#: So many containers may lie in each other.
_DEEPEST = 8
#: So many outputs are named in one sentence.
_MOST_NAMED = 8
#: What says nothing about samples, and is not an output.
_PLAIN = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True, slots=True)
class PortTensors:
    """The outputs of one call that have a row for each sample, by port."""

    tensors: Mapping[str, torch.Tensor]
    #: A sentence on outputs that have none.
    problem: str | None = None

    def add_to(self, rows: TaskRows, inputs: Sequence[int], first: int = 0) -> None:
        """Add the row of each sample and port.

        `inputs` are the rows that are samples; the first of them has the number `first`.
        """
        for port, tensor in self.tensors.items():
            whole = tensor.detach().cpu()
            for sample, place in enumerate(inputs, first):
                rows.add("outputs", sample, port=port, **_describe(whole[place]))


class OutputPorts:
    """Which outputs of one model have a row for each sample, as its calls show it."""

    def __init__(self) -> None:
        #: Ports that once had no row for each sample: where the lengths agree later, that is chance.
        self._whole: set[str] = set()
        self._named: set[str] = set()

    def find(self, output: Any, size: int) -> PortTensors:
        """Return the outputs of a call that was given `size` rows, as far as they have a row for each."""
        found = dict(_leaves(output, size))
        split = {port: tensor for port, tensor in found.items() if self._is_by_sample(port, tensor, size)}
        others = {port: value for port, value in found.items() if port not in split}
        return PortTensors(split, self._describe_others(others) if len(found) > 1 else None)

    def _is_by_sample(self, port: str, value: Any, size: int) -> bool:
        """Return whether the first axis is the samples, and nothing else can be."""
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != size:
            self._whole.add(port)
        if port in self._whole:
            return False
        # The states of a recurrent net are (layers, samples, numbers), its outputs may be (times, samples, numbers).
        return not (size > 1 and value.dim() == 3 and value.shape[1] == size)

    def _describe_others(self, others: Mapping[str, Any]) -> str | None:
        """Return a sentence on outputs that cannot be divided among samples, once; a single number is the whole batch's."""
        fresh = [port for port in others if port not in self._named and getattr(others[port], "shape", None) != ()]
        self._named |= others.keys()
        if not fresh:
            return None
        shown = [f"{port} {_form(others[port])}" for port in fresh[:_MOST_NAMED]]
        more = f" and {len(fresh) - _MOST_NAMED} more" if len(fresh) > _MOST_NAMED else ""
        return f"these parts do not show a row for each sample, and are not stored: {', '.join(shown)}{more}."


def _leaves(output: Any, size: int, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield what lies in mappings, sequences and dataclasses, with the keys or positions that lead to it."""
    entries = _entries(output, size) if depth < _DEEPEST else None
    if entries is not None:
        for name, value in entries:
            yield from _leaves(value, size, f"{path}.{name}" if path else str(name), depth + 1)
    elif path and not isinstance(output, _PLAIN):
        yield path, output


def _entries(output: Any, size: int) -> list[tuple[Any, Any]] | None:
    """Return what a container holds; None for anything else, and for a list of dicts that are about one sample each."""
    if isinstance(output, Mapping):
        return list(output.items())
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return list(zip(output._fields, output, strict=True))
    if isinstance(output, (tuple, list)):
        is_by_sample = len(output) == size and all(isinstance(one, Mapping) for one in output)
        return None if is_by_sample or looks_like_boxes(output) else list(enumerate(output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return None


def _form(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, torch.Tensor) else f"({describe_output(value)})"


def _describe(row: torch.Tensor) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "dtype": str(row.dtype).removeprefix("torch."),
        "shape": list(row.shape),
        "digest": values.digest(row.contiguous()),
    }
    numbers = row.double() if not row.is_complex() else row.abs().double()
    finite = numbers[torch.isfinite(numbers)]
    facts["nonfinite"] = numbers.numel() - finite.numel()
    if finite.numel():
        facts |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
        facts["std"] = float(finite.std(unbiased=False))
    return facts
