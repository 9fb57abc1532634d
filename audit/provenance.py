"""Where and with what a run was made: versions, host, and the commit of the working directory."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from audit.texts import as_utf8

_PACKAGES = {
    "torch": "torch",
    "torchvision": "torchvision",
    "pillow": "pillow",
    "numpy": "numpy",
    "audit": "audit-lineage",
}
#: Further packages that a pipeline may be made of; named where they are installed.
_FURTHER_PACKAGES = {
    "albumentations": "albumentations",
    "opencv": "opencv-python-headless",
    "timm": "timm",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "scipy": "scipy",
}


def describe(digest_version: int) -> dict[str, Any]:
    """Return what a run's row says of where it was made, without the commit: see `CommitQuery`."""
    command = describe_command(sys.argv[0], sys.argv[1:]) if sys.argv else ""
    return {"versions": versions(digest_version), "host": host(), "command": command}


def versions(digest_version: int) -> dict[str, str]:
    """Return the versions that decide what a pipeline computes, and the one of the recipe that its digests follow."""
    found = {"python": platform.python_version(), "digests": str(digest_version)}
    for name, package in _PACKAGES.items():
        try:
            found[name] = _version(package)
        except PackageNotFoundError:
            found[name] = "unknown"
    for name, package in _FURTHER_PACKAGES.items():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = _version(package)
    loops = sys.modules.get("audit.values.native")
    if loops is not None:
        # Without the extension the same is computed, slower; statistics of floats may differ in their last digits.
        found["native"] = "yes" if getattr(loops, "native", None) is not None else "no"
    return found


def note_missing_extension(versions: Mapping[str, str]) -> str | None:
    """Return what to tell the user of a run that was recorded without the C extension, by its versions; else None."""
    if versions.get("native") != "no":
        return None
    return (
        "audit was installed without its C extension, so that recording takes several times as long; what is recorded is the same. "
        "Install a C compiler, then install audit again."
    )


@functools.cache
def _version(name: str) -> str:
    """Return the version of an installed package, without parsing all that its metadata says: that takes milliseconds."""
    found = distribution(name)
    line = _VERSION_LINE.search(found.read_text("METADATA") or "")
    return line[1] if line is not None else found.version


def host() -> str:
    """Return the machine's own name."""
    return socket.gethostname()


class CommitQuery:
    """Asks git for the commit of the working directory. The process runs until `answer` or `cancel` is called."""

    def __init__(self) -> None:
        command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )

    def answer(self) -> str | None:
        """Return the commit, marked when files differ from it; None outside a repository."""
        if self._process is None:
            return None
        try:
            output, _ = self._process.communicate(timeout=5)
        except (OSError, subprocess.SubprocessError):
            self.cancel()
            return None
        return None if self._process.returncode else _read_status(output)

    def cancel(self) -> None:
        """End the process without its answer."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def git_commit() -> str | None:
    """Return the commit of the working directory, marked when files differ from it; None outside a repository."""
    return CommitQuery().answer()


def _read_status(output: bytes) -> str | None:
    lines = output.decode("utf-8", "replace").splitlines()
    head = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if head == "(initial)":
        return None
    return head if all(line.startswith("#") for line in lines) else f"{head}+changes"


_VERSION_LINE = re.compile(r"^Version: *(\S+)\s*$", re.MULTILINE)
#: Needs no quotes in a shell; shown as three stars.
_HIDDEN_MARK = "_hidden_value_"
#: Options whose value is not for others. `--tokenizer` and `--author` are: a word must end where it ends.
_SECRET = re.compile(
    r"-{0,2}([a-z0-9]+[-_.])*(password|passwd|passphrase|secret|token|api[-_]?key|access[-_]?key|secret[-_]?key"
    r"|private[-_]?key|credentials?)([-_.](id|key))?",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
#: Variables whose values are secret wherever they turn up.
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY", "HF_TOKEN")


def describe_command(program: str, arguments: Sequence[str]) -> str:
    """Return a command line with `***` in the place of passwords, tokens and keys."""
    secrets = [value for name in _VARIABLES if (value := os.environ.get(name))]
    words, hide = [os.path.basename(program)], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide and not argument.startswith("--"):
            argument = _HIDDEN_MARK
        elif equals and _SECRET.fullmatch(name):
            argument = f"{name}={_HIDDEN_MARK}"
        hide = name.startswith("-") and not equals and _SECRET.fullmatch(name) is not None
        shown = _IN_ADDRESS.sub(_HIDDEN_MARK, argument)
        for secret in secrets:
            shown = shown.replace(secret, _HIDDEN_MARK)
        words.append(shown)
    return as_utf8(shlex.join(words).replace(_HIDDEN_MARK, "***"))
