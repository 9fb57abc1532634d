"""safetensors files: weights and text, no code. Class names and the architecture may be in the file's metadata."""

from __future__ import annotations

from audit.errors import MissingExtra, ModelError
from audit.models.checkpoint import find_hinted_arch
from audit.models.classes import classes_of
from audit.models.complete_model import complete_model
from audit.models.file_kinds import digest_of, head, require_file
from audit.models.loaded_model import LoadedModel, LoadOptions
from audit.models.weights import StateDict, fit

kind = "a safetensors file"
executes_code = False


def recognise(spec: str) -> bool:
    """Return whether the file begins with eight bytes of header length, then the header's JSON."""
    start = head(require_file(spec), 9)
    return len(start) == 9 and start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") < 2**32


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return a model with these weights, in the requested, named or recognised architecture."""
    path = require_file(spec)
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingExtra("safetensors", "Reading a safetensors file", extra="safetensors") from None
    digest = digest_of(path)
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            state: StateDict = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is not a dict)
            metadata: dict[str, object] = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{path} is a damaged safetensors file: {' '.join(str(error).split())[:200]}.",
            hint="Copy or save it again.",
        ) from error
    if not state:
        raise ModelError(f"{path} holds no tensors.", hint="Save the model's state dict.")
    fitted = fit(state, options.arch, find_hinted_arch(metadata), options.builder, what=str(path))
    loaded = LoadedModel(
        module=fitted.module,
        spec=spec,
        digest=digest,
        format="safetensors",
        classes=classes_of(metadata),
        notes=fitted.notes,
        extras=metadata,
    )
    return complete_model(loaded, fitted.architecture, fitted.num_classes, device=options.device)
