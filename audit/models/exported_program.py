"""Programs of torch.export (`.pt2`). Loading one can run code from the archive: only with trust."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from audit.errors import ModelError
from audit.models.complete_model import complete_model, identify
from audit.models.file_kinds import digest_of, members, require_file
from audit.models.loaded_model import LoadedModel, LoadOptions

kind = "an exported PyTorch program (.pt2)"
executes_code = True


def recognise(spec: str) -> bool:
    """Return whether this is a zip archive of an exported program, in the current layout or that of torch before 2.8."""
    names = members(require_file(spec))
    today = "archive_format" in names and any(name.startswith("models/") for name in names)
    return today or "serialized_exported_program.json" in names


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the program as a module; its mode and batch size are those of the export."""
    path = require_file(spec)
    digest = digest_of(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
            module = program.module()
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{path} is {kind} that cannot be loaded: {reason}", hint="Export it again with this version of torch."
        ) from error
    loaded = LoadedModel(module=module, spec=spec, digest=digest, format="exported")
    if (fixed := _find_fixed_batch(program)) is not None:
        loaded.notes.append(
            f"The program was exported for batches of exactly {fixed} samples. Export it with a dynamic first "
            "dimension to use other batch sizes."
        )
    return complete_model(loaded, *identify(module, options.arch), device=options.device)


def _find_fixed_batch(program: torch.export.ExportedProgram) -> int | None:
    """Return the size of the inputs' first dimension, if the program accepts no other."""
    inputs = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs:
            shape: Sequence[object] = getattr(node.meta.get("val"), "shape", ())
            first = shape[0] if shape else None
            return first if isinstance(first, int) else None
    return None
