"""The kinds of model that `--model` accepts: weights, checkpoints, TorchScript, exported programs, safetensors, functions.

Importing this package loads no torch; `load` does. A format is one file here and one entry in `formats.py`.
It refuses to run code from a model file unless it is trusted, and never downloads weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from audit.models.classes import compare_classes, complete_classes
from audit.models.loaded_model import LoadedModel

if TYPE_CHECKING:
    from torch import nn

__all__ = ["LoadedModel", "compare_classes", "complete_classes", "load"]


def load(
    spec: str,
    *,
    arch: str | None = None,
    trust: bool = False,
    device: str = "cpu",
    builder: Callable[[], nn.Module] | None = None,
) -> LoadedModel:
    """Return the model that `spec` names (a file, `module:function` or `FILE.py:function`), in eval mode on `device`.

    Weights without code go into `arch` if it is given, else into `builder()`, else into the architecture the file names, else
    into the architecture that is recognised from names and shapes. Raises `ModelError` or a subclass.
    """
    from audit.models.formats import load_model
    from audit.models.loaded_model import LoadOptions

    return load_model(spec, LoadOptions(arch=arch, trust=trust, device=device, builder=builder))
