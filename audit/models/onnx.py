"""ONNX models, run by ONNX Runtime. They are graphs of known operators: loading and running one executes no Python.

The model is read from the bytes of one file, so that its digest stands for all of it; weights in other files are refused. The
graph runs as it was exported: it has no layers to hook and no gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from audit.errors import MissingExtra, ModelError, UsageError
from audit.models.architectures import find_architecture
from audit.models.classes import classes_of
from audit.models.complete_model import complete_model
from audit.models.file_kinds import digest_of, head, require_file
from audit.models.loaded_model import LoadedModel, LoadOptions

kind = "an ONNX model"
executes_code = False


def recognise(spec: str) -> bool:
    """Return whether the file is named .onnx and begins as ONNX's messages do; its bytes alone say too little."""
    return spec.lower().endswith(".onnx") and head(require_file(spec), 1) == b"\x08"


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the graph as a module. `--arch` names the preprocessing alone."""
    path = require_file(spec)
    session = _session(path.read_bytes(), str(path), options.device)
    loaded = LoadedModel(
        module=OnnxModule(session),
        spec=spec,
        digest=digest_of(path),
        format="onnx",
        classes=classes_of(dict(session.get_modelmeta().custom_metadata_map)),
    )
    fixed = _find_fixed_size(session.get_inputs()[0].shape)
    if fixed is not None and fixed != 1:
        loaded.notes.append(
            f"The model was exported for batches of exactly {fixed} samples. Export it with a dynamic first dimension "
            "to use other batch sizes."
        )
    shape = session.get_outputs()[0].shape
    classes = shape[-1] if len(shape) == 2 and isinstance(shape[-1], int) else None
    architecture = find_architecture(options.arch) if options.arch is not None else None
    return complete_model(loaded, architecture, classes, device="cpu")


class OnnxModule(nn.Module):
    """Runs an ONNX graph on tensors. A graph that takes one sample at a time is given one at a time."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session
        self.names = [each.name for each in session.get_inputs()]
        self.one_by_one = _find_fixed_size(session.get_inputs()[0].shape) == 1

    def forward(self, *values: torch.Tensor, **named: torch.Tensor) -> Any:
        """Return the graph's output, or a tuple of its outputs."""
        given = dict(zip(self.names, values, strict=False)) | {k: v for k, v in named.items() if k in self.names}
        length = next(iter(given.values())).shape[0]
        if self.one_by_one and length != 1:
            parts = [self._run({name: v[n : n + 1] for name, v in given.items()}) for n in range(length)]
            outputs = [torch.cat(group) for group in zip(*parts, strict=True)]
        else:
            outputs = self._run(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _run(self, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        feed = {name: value.detach().cpu().numpy() for name, value in given.items()}
        device = next(iter(given.values())).device
        return [torch.from_numpy(array).to(device) for array in self.session.run(None, feed)]


def _find_fixed_size(shape: list[object]) -> int | None:
    """Return the size of the first dimension if the graph accepts no other."""
    return shape[0] if shape and isinstance(shape[0], int) else None


def _session(data: bytes, path: str, device: str) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", "Running an ONNX model", extra="onnx") from None
    wanted = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}.get(torch.device(device).type)
    if wanted not in onnxruntime.get_available_providers():
        raise UsageError(f"ONNX Runtime cannot use the device {device!r} here.", hint="Use --device cpu.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    # Weights in other files would be looked for in the working directory, and the digest would not cover them.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", "/nonexistent")
    try:
        return onnxruntime.InferenceSession(data, options, providers=[wanted])
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{path} is {kind} that cannot be loaded: {reason}",
            hint="Export it again, with its weights inside the file: torch.onnx.export(…, external_data=False).",
        ) from error
