"""Which code a run's recipe names, and whether it may be executed.

A recipe is data from a store, and a store may come from anyone. Its code runs only if this machine recorded the
recipe, which a signature by the user's own key shows, or if the user says so now. Trust never travels in a store:
`trust` in a recipe counts only under such a signature, and only for the very file that was loaded then.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from audit import recording_key
from audit.errors import CodeNotTrusted
from audit.records import Run
from audit.sources.base import recognise_dataset
from audit.sources.builder import builders_of, file_of
from audit.store.bucket.location import is_remote
from audit.usercode import is_code_name

#: What a signature covers: every key of a recipe that says which code runs, and on what.
_SIGNED_KEYS = ("kind", "dataset", "pipeline", "model", "arch", "trust", "builders", "code", "files")
#: The keys of a recipe that may name code.
NAMES = ("builders", "pipeline", "dataset", "model", "arch")


class CodeChangedWarning(UserWarning):
    """Warn that a code file has changed since the run was recorded."""


@dataclass(frozen=True, slots=True)
class NamedCode:
    """One piece of code that a recipe names; `file` is its current path, or None if unknown."""

    spec: str
    file: str | None

    def __str__(self) -> str:
        return self.file or self.spec


def sign_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with the digests of the files that it names, signed by this user's key.

    `files` maps each code file to its SHA-256. `signature` is None if this user cannot store a key.
    """
    files = {named.file for named in _code(recipe, NAMES) if named.file is not None}
    model = recipe.get("model")
    if recipe.get("trust") and isinstance(model, str) and os.path.isfile(model):
        files.add(os.path.abspath(model))
    signed = {**recipe, "files": {file: _digest(file) for file in sorted(files)}}
    return {**signed, "signature": recording_key.sign(_message(signed))}


def is_recorded_here(recipe: Mapping[str, Any]) -> bool:
    """Return whether this user recorded the recipe on this machine and it has not changed since."""
    return recording_key.is_signed(_message(recipe), recipe.get("signature"))


def find_changed_code(recipe: Mapping[str, Any]) -> list[str]:
    """Return the recorded code files, imported ones included, that have changed or no longer exist."""
    builders = builders_of(recipe)
    listed = [*(recipe.get("code") or ()), *builders, *(one for builder in builders for one in builder.get("code", ()))]
    # The digest of the executed bytes has priority over that of the file when the recipe was signed.
    recorded = recipe["files"] | {one["file"]: one["sha256"] for one in listed if one.get("file")}
    return [file for file, digest in recorded.items() if digest is None or _digest(file) != digest]


def is_derivable(run: Run, trust: bool = False) -> bool:
    """Return whether missing outputs may be recomputed without --trust: only by the same code that this machine ran."""
    return trust or not _code(run.recipe, NAMES) or (is_recorded_here(run.recipe) and not find_changed_code(run.recipe))


def require_trust(run: Run, trust: bool = False, using: Collection[str] = NAMES) -> bool:
    """Raise CodeNotTrusted unless the code that the recipe names under `using` may run; warn if it has changed.

    Return whether a model file may execute code while it is loaded.
    """
    if trust:
        return True
    recipe = run.recipe
    named = _code(recipe, using)
    here = is_recorded_here(recipe)
    recorded = recipe["files"] if here else {}
    # Code without its own file, such as a dataset of torchvision, is covered only by the signature.
    if unknown := [one for one in named if not here or (one.file is not None and one.file not in recorded)]:
        raise _refusal(run, [str(one) for one in unknown], here)
    changed = find_changed_code(recipe) if here else []
    for file in changed:
        if file.endswith(".py") and os.path.exists(file) and named:
            warnings.warn(
                f"audit: {file} has changed since the run {run.run_id} was recorded; the current version is executed.",
                CodeChangedWarning,
                stacklevel=2,
            )
    model = os.path.abspath(str(recipe.get("model")))
    return bool(recipe.get("trust")) and model in recorded and model not in changed


def _refusal(run: Run, files: list[str], here: bool) -> CodeNotTrusted:
    listed = ", ".join(dict.fromkeys(files))
    if here:
        why = "which is not the file that was recorded"
    elif not recording_key.has_key():
        why = f"and this user has no key to show that it recorded the run ({recording_key.key_path()})"
    else:
        why = "and the run was not recorded by this user on this machine"
    contacts = all(is_remote(file) for file in files)
    return CodeNotTrusted(
        f"This would {'contact' if contacts else 'execute'} {listed}, named by the run {run.run_id}, {why}.",
        hint="If you trust the address, add --trust, or trust=True in Python."
        if contacts
        else "Read the code first. If you trust it, add --trust, or trust=True in Python.",
        files=list(dict.fromkeys(files)),
    )


def _digest(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


def _message(recipe: Mapping[str, Any]) -> bytes:
    chosen = {name: recipe.get(name) for name in _SIGNED_KEYS}
    return b"audit recipe 1\n" + json.dumps(chosen, sort_keys=True, ensure_ascii=True).encode()


def _code(recipe: Mapping[str, Any], using: Collection[str]) -> list[NamedCode]:
    found: list[NamedCode] = []
    if "builders" in using:
        found += [_find_named_code(str(one["builder"])) for one in builders_of(recipe) if one.get("builder")]
    if recipe.get("kind") != "run":
        return found
    spec = {name: str(recipe[name]) for name in NAMES if name in using and isinstance(recipe.get(name), str)}
    if "pipeline" in spec:
        found.append(NamedCode(spec["pipeline"], os.path.abspath(file_of(spec["pipeline"]))))
    if "dataset" in spec and _runs_code(spec["dataset"]):
        found.append(_find_named_code(spec["dataset"]))
    found += [_find_named_code(spec[name]) for name in ("model", "arch") if name in spec and is_code_name(spec[name])]
    return found


def _runs_code(dataset: str) -> bool:
    """Return whether opening this dataset executes the user's code or another library, or connects to a server."""
    _, chosen = recognise_dataset(dataset)
    return chosen is not None and not getattr(chosen, "runs_no_code", False)


def _find_named_code(spec: str) -> NamedCode:
    if not is_code_name(spec):
        return NamedCode(spec, None)
    place = file_of(spec)
    return NamedCode(spec, os.path.abspath(place) if place.endswith(".py") else _module_file(place))


def _module_file(name: str) -> str | None:
    """Return the file of a module, found as by an import, but without importing its packages."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return os.path.abspath(file) if file else None
    search: list[str] = [os.getcwd(), *sys.path]
    for length in range(1, name.count(".") + 2):
        found = PathFinder.find_spec(".".join(name.split(".")[:length]), search)
        if found is None:
            return None
        search = list(found.submodule_search_locations or ())
    return os.path.abspath(found.origin) if found is not None and found.origin else None
