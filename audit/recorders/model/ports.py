"""All tensors that a model with several outputs returned, each under its port, sample by sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from audit import values
from audit.recorders.model.task_rows import TaskRows


def add_ports(rows: TaskRows, output: Any, inputs: Sequence[int], size: int, first: int = 0) -> None:
    """Add the row of each sample and port, where a model of `size` rows returned several tensors with a row for each.

    `inputs` are the rows that are samples; the first of them has the number `first`.
    """
    ports = {port: tensor for port, tensor in _tensors(output) if tensor.dim() and tensor.shape[0] == size}
    if len(ports) < 2:
        return
    for port, tensor in ports.items():
        whole = tensor.detach().cpu()
        for sample, place in enumerate(inputs, first):
            rows.add("outputs", sample, port=port, **_describe(whole[place]))


def _tensors(output: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors directly in a mapping, sequence or dataclass, with the key or position of each."""
    entries: list[tuple[Any, Any]] = []
    if isinstance(output, Mapping):
        entries = list(output.items())
    elif isinstance(output, tuple) and hasattr(output, "_fields"):
        entries = list(zip(output._fields, output, strict=True))
    elif isinstance(output, (tuple, list)):
        entries = list(enumerate(output))
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        entries = [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    for name, value in entries:
        if isinstance(value, torch.Tensor):
            yield str(name), value


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
