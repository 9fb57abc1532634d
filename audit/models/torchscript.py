"""TorchScript archives. They bring their own code, which runs while they load: only with trust."""

from __future__ import annotations

import warnings

import torch

from audit.errors import ModelError
from audit.models.complete_model import complete_model, identify
from audit.models.file_kinds import digest_of, members, require_file
from audit.models.loaded_model import LoadedModel, LoadOptions

kind = "a TorchScript archive"
executes_code = True


def recognise(spec: str) -> bool:
    """Return whether this is a zip archive with torch's constants and code in it."""
    names = members(require_file(spec))
    return "constants.pkl" in names and "data.pkl" in names


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the scripted or traced module; its architecture is recognised for its preset only."""
    path = require_file(spec)
    digest = digest_of(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{path} is {kind} that cannot be loaded: {reason}", hint="Save it again.") from error
    loaded = LoadedModel(module=module, spec=spec, digest=digest, format="torchscript")
    return complete_model(loaded, *identify(module, options.arch), device=options.device)
