"""Folders that Hugging Face's `save_pretrained` writes: config.json, model.safetensors and the processor's settings.

transformers builds the model from its own classes. A folder whose configuration names code of its own (`auto_map`) would
run that code, so it needs --trust. Nothing is downloaded, and weights are read from safetensors alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from audit.errors import MissingExtra, ModelError, NeedsTrust
from audit.models.complete_model import complete_model
from audit.models.expected_input import find_stated_input
from audit.models.huggingface_modules import MODULES
from audit.models.loaded_model import LoadedModel, LoadOptions
from audit.models.processor_stages import TokenizeText, processor_preset

kind = "a Hugging Face folder"
executes_code = False

_CONFIG, _PROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
#: Tasks whose samples are texts.
_OF_TEXT = ("SequenceClassification", "TokenClassification")
#: Names that transformers gives to classes without a name.
_PLACEHOLDER = re.compile(r"LABEL_\d+")


def recognise(spec: str) -> bool:
    """Return whether it is a folder with a config.json."""
    return "://" not in spec and (Path(spec) / _CONFIG).is_file()


def load(spec: str, options: LoadOptions) -> LoadedModel:
    """Return the folder's model with its processor as the preset."""
    folder = Path(spec)
    config = _read_json(folder / _CONFIG)
    settings = _read_json(folder / _PROCESSOR) if (folder / _PROCESSOR).is_file() else {}
    has_code = _check_code(spec, (config, settings), options)
    name, task = _find_task(spec, config)
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "Reading a Hugging Face folder", extra="transformers") from None
    if not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise ModelError(
            f"{spec} has no model.safetensors.",
            hint="Save it with model.save_pretrained(FOLDER), which writes safetensors.",
        )
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{spec} is an adapter; it does not contain its base model.",
            hint="Merge it with model.merge_and_unload(), and save that with save_pretrained.",
        )
    how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": has_code}
    with _stay_offline():
        model = _load_weights(getattr(transformers, f"AutoModelFor{task}"), spec, how)
        processor = None if task in _OF_TEXT else _load_processor(transformers, spec, how, settings)
        preset: object | None = processor_preset(processor) if processor is not None else None
        if task in _OF_TEXT:
            preset = _tokenizer(transformers, spec, how)
    settled: Any = model.config
    loaded = LoadedModel(
        module=MODULES[task](model, processor),
        spec=spec,
        digest=_digest_of(folder, has_code),
        format="huggingface",
        arch=name,
        classes=_classes(settled),
        preset=preset,
        expected=find_stated_input(settings, _PROCESSOR),
        output=MODULES[task].output,
    )
    outputs = int(settled.num_labels)
    # A detector's outputs are boxes, and those of tokens are for each token, not one number for each class of samples.
    has_rows = task not in ("ObjectDetection", "TokenClassification")
    return complete_model(loaded, None, outputs if has_rows else None, device=options.device)


@contextlib.contextmanager
def _stay_offline() -> Iterator[None]:
    """Contact nobody meanwhile: a configuration may name a backbone of the hub, which `local_files_only` does not reach."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _check_code(spec: str, files: tuple[Mapping[str, Any], ...], options: LoadOptions) -> bool:
    """Return whether the folder has code of its own; raise where that is not trusted."""
    has_code = any("auto_map" in file for file in files)
    if has_code and not options.trust:
        raise NeedsTrust(
            f"{spec} is {kind} whose configuration names Python code of its own (auto_map), which would be executed.",
            hint="If you trust where it comes from, add --trust.",
        )
    return has_code


def _find_task(spec: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the architecture and what it is for."""
    architectures = config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else None
    task = next((task for task in MODULES if name is not None and f"For{task}" in name), None)
    if name is None or task is None:
        known = ", ".join(f"…For{one}" for one in MODULES)
        raise ModelError(
            f"{spec} holds {name or 'a model that names no architecture'}, which audit cannot run by itself.",
            hint=f"It can run {known}. Give others as --model FILE.py:function, or record your own loop.",
        )
    return name, task


def _load_weights(kind: Any, spec: str, how: dict[str, Any]) -> nn.Module:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model, report = kind.from_pretrained(spec, use_safetensors=True, output_loading_info=True, **how)
    except Exception as error:
        raise _cannot_load(spec, error) from error
    finally:
        if shown:
            logging.enable_progress_bar()
    missing = sorted(report.get("missing_keys") or ()) + sorted(map(str, report.get("mismatched_keys") or ()))
    if missing:
        raise ModelError(
            f"{spec} lacks weights that its architecture needs ({', '.join(missing[:3])}), so they would be random.",
            hint="Save the trained model again with save_pretrained.",
        )
    module: nn.Module = model
    return module


def _load_processor(transformers: Any, spec: str, how: dict[str, Any], settings: Mapping[str, Any]) -> Any:
    if not settings:
        return None
    try:
        return transformers.AutoImageProcessor.from_pretrained(spec, **how)
    except Exception as error:
        raise _cannot_load(spec, error) from error


def _tokenizer(transformers: Any, spec: str, how: dict[str, Any]) -> object:
    try:
        return TokenizeText(transformers.AutoTokenizer.from_pretrained(spec, **how))
    except Exception as error:
        raise _cannot_load(spec, error) from error


def _cannot_load(spec: str, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:300]
    return ModelError(
        f"transformers cannot load {spec}: {type(error).__name__}: {reason}",
        hint="Check that the folder is complete, and that this version of transformers knows the model.",
    )


def _classes(config: Any) -> list[str] | None:
    """Return the names of the classes; None where they are placeholders."""
    names = {int(number): str(name) for number, name in (config.id2label or {}).items()}
    ordered = [names.get(number) for number in range(int(config.num_labels))]
    if None in ordered or all(_PLACEHOLDER.fullmatch(str(name)) for name in ordered):
        return None
    return [str(name) for name in ordered]


def _digest_of(folder: Path, has_code: bool) -> str:
    """Return SHA-256 over the names and contents of the files that the model is made of, its own code among them."""
    whole = hashlib.sha256()
    kinds = ("*.json", "*.safetensors", *(("*.py",) if has_code else ()))
    for path in sorted(path for kind in kinds for path in folder.glob(kind)):
        with path.open("rb") as file:
            whole.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}", hint="Save the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is not a configuration: it holds no object.", hint="Save the model again.")
    return found
