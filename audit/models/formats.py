"""The table of model formats, and the function that uses it.

A format is a module with `kind`, `executes_code`, `recognise` and `load`; a plugin names one under the entry point
group `audit.models`. The question whether a file may run code is asked here, once, before any format touches the file.
"""

from __future__ import annotations

from typing import Protocol

import torch

from audit.errors import ModelError, NeedsTrust, UsageError
from audit.models import exported_program, function, huggingface, onnx, safetensors, state_dict, torchscript
from audit.models.archives import check_archive
from audit.models.file_kinds import members, require_file, unknown_format_error
from audit.models.loaded_model import LoadedModel, LoadOptions
from audit.registry import Registry


class Format(Protocol):
    """One kind of model that `--model` accepts."""

    kind: str  # in words, with an article: "a TorchScript archive"
    executes_code: bool  # loading it can run code that the file brings along

    def recognise(self, spec: str) -> bool:
        """Return whether this has the format, without loading it or running code."""
        ...

    def load(self, spec: str, options: LoadOptions) -> LoadedModel:
        """Return the model, in eval mode on the wanted device."""
        ...


FORMATS: Registry[Format] = Registry("model format", group="audit.models")
FORMATS.add("function", function)
FORMATS.add("huggingface", huggingface)
FORMATS.add("exported", exported_program)
FORMATS.add("torchscript", torchscript)
FORMATS.add("onnx", onnx)
FORMATS.add("safetensors", safetensors)
FORMATS.add("state_dict", state_dict)


def load_model(spec: str, options: LoadOptions) -> LoadedModel:
    """Find the format of `spec`, refuse code that is not trusted, and load."""
    _check_device(options.device)
    path = None if function.recognise(spec) or huggingface.recognise(spec) else require_file(spec)
    for one in FORMATS.values():
        if one.recognise(spec):
            if one.executes_code and not options.trust:
                raise needs_trust(spec, one.kind)
            if path is not None and members(path):
                check_archive(path)
            return one.load(spec, options)
    raise unknown_format_error(require_file(spec))


def needs_trust(spec: str, kind: str, detail: str = "") -> NeedsTrust:
    """Return the error for a file that would run its own code while it is loaded."""
    return NeedsTrust(
        f"{spec} is {kind}{detail}, and loading it can execute code that the file contains.",
        hint="If you trust where it comes from, add --trust; otherwise save only the weights: "
        "torch.save(model.state_dict(), FILE).",
    )


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=torch.device(device))
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        reason = (str(error).splitlines() or ["unavailable"])[0]
        raise UsageError(f"The device {device!r} cannot be used: {reason}", hint="Use --device cpu.") from None


__all__ = ["FORMATS", "Format", "ModelError", "load_model", "needs_trust"]
