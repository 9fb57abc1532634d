"""Files of torch.save: a bare state dict, a checkpoint dict, or (only with trust) a whole pickled module.

Always read with `weights_only=True` first. A file that needs more than tensors and plain values is refused unless it is
trusted, and then nothing of it has run yet.
"""

from __future__ import annotations

import argparse
import pathlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from audit.errors import ModelError, NeedsTrust
from audit.models.checkpoint import find_hinted_arch, find_weights, is_state_dict, plain_facts
from audit.models.classes import classes_of
from audit.models.complete_model import complete_model, identify
from audit.models.expected_input import find_stated_input
from audit.models.file_kinds import digest_of, is_legacy_torch, is_pickle, members, require_file
from audit.models.loaded_model import LoadedModel, LoadOptions
from audit.models.weights import fit

kind = "a file of torch.save"
executes_code = False  # not by itself: what would is refused in `_read`

# Values that training scripts store next to weights, and that can be created without running code.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    pathlib.PosixPath,
    np.dtype,
    type(np.dtype(np.float64)),
    type(np.dtype(np.float32)),
    type(np.dtype(np.int64)),
    np._core.multiarray.scalar,  # type: ignore[attr-defined]
    (np._core.multiarray.scalar, "numpy.core.multiarray.scalar"),  # type: ignore[attr-defined]
]


def recognise(spec: str) -> bool:
    """Return whether this is torch.save's zip archive, its older pickle, or another pickle."""
    path = require_file(spec)
    return "data.pkl" in members(path) or is_pickle(path)


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the model with the weights in that file."""
    path = require_file(spec)
    digest = digest_of(path)
    content = _read(path, options.trust)
    if isinstance(content, nn.Module):
        return _whole_module(content, spec, digest, options, {})
    if not isinstance(content, Mapping):
        raise ModelError(
            f"{path} holds a {type(content).__name__}, not weights.", hint="Save model.state_dict() with torch.save."
        )
    bare = is_state_dict(content)
    found = (content, "", []) if bare else find_weights(content)
    if found is None:
        entries = ", ".join(repr(str(name)) for name in list(content)[:6]) or "nothing"
        raise ModelError(
            f"{path} holds a dict without weights: its entries are {entries}.",
            hint="Save model.state_dict(), or a dict with it under 'state_dict'.",
        )
    weights, _, notes = found
    about = {} if bare else content
    if isinstance(weights, nn.Module):
        return _whole_module(weights, spec, digest, options, about)
    fitted = fit(_tensors(weights), options.arch, find_hinted_arch(about), options.builder, what=str(path))
    loaded = LoadedModel(
        module=fitted.module,
        spec=spec,
        digest=digest,
        format="state_dict" if bare else "checkpoint",
        classes=classes_of(about),
        notes=[*notes, *fitted.notes],
        expected=find_stated_input(about),
        extras=plain_facts(about),
    )
    return complete_model(loaded, fitted.architecture, fitted.num_classes, device=options.device)


def _tensors(weights: Any) -> dict[str, torch.Tensor]:
    # Kept as it is where it can be: an OrderedDict of torch's carries module versions.
    if all(isinstance(value, torch.Tensor) for value in weights.values()):
        return weights  # type: ignore[no-any-return]
    return {name: value for name, value in weights.items() if isinstance(value, torch.Tensor)}


def _whole_module(
    module: nn.Module, spec: str, digest: str, options: LoadOptions, about: Mapping[str, Any]
) -> LoadedModel:
    loaded = LoadedModel(module=module, spec=spec, digest=digest, format="checkpoint")
    loaded.classes, loaded.extras = classes_of(about), plain_facts(about)
    loaded.expected = find_stated_input(about)
    loaded.notes.append(f"The file holds a whole pickled {type(module).__name__}, which was used unchanged.")
    return complete_model(loaded, *identify(module, options.arch), device=options.device)


def _read(path: Path, trust: bool) -> object:
    """Return the file's content; code in it runs only with `trust`."""
    plain_pickle = is_pickle(path) and not is_legacy_torch(path)
    if plain_pickle and not trust:
        raise _needs_trust(path, "a Python pickle", "")
    if plain_pickle:
        return _unpickle(path, lambda: pickle.loads(path.read_bytes()))
    try:
        with torch.serialization.safe_globals(_HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not trust:
            raise _needs_trust(path, "a pickled checkpoint", _name_needed(str(error))) from None
    except Exception as error:  # a hostile file can make an unpickler raise anything; nothing has run
        raise _damage_error(path, error) from error
    return _unpickle(path, lambda: torch.load(path, map_location="cpu", weights_only=False))


def _name_needed(message: str) -> str:
    """Return the name at which the unpickler stopped, from its long message."""
    for marker in ("GLOBAL ", "Unsupported global: GLOBAL ", "Unsupported class "):
        if marker in message:
            return f" that needs {message.split(marker, 1)[1].split()[0].rstrip('.,')}"
    return ""


def _needs_trust(path: Path, what: str, detail: str) -> NeedsTrust:
    from audit.models.formats import needs_trust

    return needs_trust(str(path), what, detail)


def _unpickle(path: Path, read: Any) -> object:
    try:
        content: object = read()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ModelError(
            f"{path} cannot be unpickled: {reason}.",
            hint="The code that defines its classes must be importable; a state dict needs none.",
        ) from error
    return content


def _damage_error(path: Path, error: Exception) -> ModelError:
    reason = (" ".join(str(error).split())[:200] or type(error).__name__).rstrip(".")
    return ModelError(f"{path} is damaged or truncated: {reason}.", hint="Copy or save it again.")
