"""All tensors that a model with several outputs returned, each under its port: sample by sample, or for the whole call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from audit import values
from audit.models.output_tree import is_weight, iterate_leaves
from audit.models.task_outputs import describe_output
from audit.recorders.model.sample_axis import OTHER, SAMPLES, SampleAxis
from audit.recorders.model.tasks.task_rows import TaskRows
from audit.records import Level
from audit.texts import enumerate_some

#: So many outputs are named in one sentence.
_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True, slots=True)
class PortTensors:
    """The tensors that one call returned, by port."""

    #: Those with an entry for each row of the call, which may be those of the samples.
    tensors: Mapping[str, torch.Tensor]
    #: Those that belong to the call as a whole.
    whole: Mapping[str, torch.Tensor]
    #: What is known of the first axis of each.
    axes: Mapping[str, str | None]
    problems: Sequence[str] = ()

    @property
    def bytes_per_row(self) -> float:
        """How many bytes they hold, for each row of the call."""
        split = sum(tensor.nbytes / max(len(tensor), 1) for tensor in self.tensors.values())
        return split + sum(tensor.nbytes for tensor in self.whole.values())

    def add_to(self, rows: TaskRows, inputs: Sequence[int], level: Level, first: int = 0) -> None:
        """Add the row of each sample and port, and one for each port of the whole call.

        `inputs` are the rows that are samples; the first of them has the number `first`.
        """
        for port, tensor in self.tensors.items():
            entries = tensor.detach().cpu()
            for sample, place in enumerate(inputs, first):
                rows.add("outputs", sample, port=port, axis=self.axes[port], **_describe(entries[place], level))
        for port, tensor in self.whole.items():
            rows.add("outputs", None, port=port, axis=self.axes[port], **_describe(tensor.detach().cpu(), level))


class OutputPorts:
    """Which outputs of one model have an entry for each sample, as its calls show it."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self._module = module
        self._axis = SampleAxis()
        self._named: set[str] = set()

    def note(self, output: Any, size: int) -> None:
        """Take in what a call returned that is not recorded: it shows which outputs follow the number of rows."""
        for port, value in iterate_leaves(output, size):
            if isinstance(value, torch.Tensor):
                self._axis.note(port, value, size)

    def find(self, output: Any, size: int) -> PortTensors:
        """Return the outputs of a call that was given `size` rows."""
        found = dict(iterate_leaves(output, size))
        problems = []
        tensors: dict[str, torch.Tensor] = {}
        for port, value in found.items():
            if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested:
                tensors[port] = value
                if (problem := self._note(port, value, size)) is not None:
                    problems.append(problem)
        split = {port: tensor for port, tensor in tensors.items() if self._is_by_sample(port, tensor, size)}
        whole = {port: tensor for port, tensor in tensors.items() if port not in split}
        others = {port: value for port, value in found.items() if port not in tensors}
        if len(found) > 1 and (problem := self._describe_others(others)) is not None:
            problems.append(problem)
        return PortTensors(split, whole, {port: self._axis.first_axis(port) for port in tensors}, problems)

    def _note(self, port: str, value: torch.Tensor, size: int) -> str | None:
        """Take in one output; return a sentence where it refutes what earlier rows of it seemed to be."""
        if self._axis.first_axis(port) == OTHER:
            return None
        self._axis.note(port, value, size)
        if self._axis.first_axis(port) is None and is_weight(value, self._module):
            self._axis.refute(port)
            return None
        if self._axis.first_axis(port) != OTHER or not self._axis.was_assumed(port):
            return None
        return (
            f"in earlier calls, the output {port} had one entry for each sample. Now its shape is {tuple(value.shape)} for "
            f"{size} samples, so its entries are not those of single samples. The view sample_outputs leaves out its rows, "
            "also the earlier ones (`axis` is NULL in `outputs`)."
        )

    def _is_by_sample(self, port: str, value: torch.Tensor, size: int) -> bool:
        """Return whether the first axis is the samples, as far as it is known, and no other axis seems to be."""
        known = self._axis.first_axis(port)
        if known == OTHER:
            return False
        # The states of a recurrent net are (layers, samples, numbers), its outputs may be (times, samples, numbers).
        is_ambiguous = size > 1 and value.dim() == 3 and value.shape[1] == size
        return not is_ambiguous or known == SAMPLES

    def _describe_others(self, others: Mapping[str, Any]) -> str | None:
        """Return a sentence on outputs that are not tensors, once."""
        fresh = [port for port in others if port not in self._named]
        self._named |= others.keys()
        if not fresh:
            return None
        shown = [f"{port} ({describe_output(others[port])})" for port in fresh]
        return f"these parts are not tensors with numbers in a row, and are not stored: {enumerate_some(shown, _MOST_NAMED)}."


def _describe(value: torch.Tensor, level: Level) -> dict[str, Any]:
    value = value.contiguous()
    facts: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "digest": values.digest(value),
    }
    numbers = value.double() if not value.is_complex() else value.abs().double()
    finite = numbers[torch.isfinite(numbers)]
    facts["nonfinite"] = numbers.numel() - finite.numel()
    if finite.numel():
        facts |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
        facts["std"] = float(finite.std(unbiased=False))
    return facts | _payload(value, level)


def _payload(value: torch.Tensor, level: Level) -> dict[str, Any]:
    """Return what is kept of a value at this level."""
    if level == "full":
        kind, encoded = values.encode(value)
        if kind == "tensor":
            return {"form": "full", "encoding": encoded.encoding, "data": encoded.data}
    if level != "digest" and (preview := values.preview(value)) is not None:
        return {"form": "preview", "encoding": preview.media_type, "data": preview.data}
    return {}
