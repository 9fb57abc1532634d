"""Where and with what a run was made: versions, host, and the commit of the working directory."""

from __future__ import annotations

import contextlib
import platform
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from audit.engines.command import shown_command

_PACKAGES = {
    "torch": "torch",
    "torchvision": "torchvision",
    "pillow": "pillow",
    "numpy": "numpy",
    "audit": "audit-lineage",
}
#: Those that a pipeline may be made of besides; told where they are installed.
_BESIDES = {
    "albumentations": "albumentations",
    "opencv": "opencv-python-headless",
    "timm": "timm",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "scipy": "scipy",
}


def describe() -> dict[str, Any]:
    """What a run's row says of where it was made."""
    command = shown_command(sys.argv[0], sys.argv[1:]) if sys.argv else ""
    return {"versions": versions(), "git_commit": git_commit(), "host": host(), "command": command}


def versions() -> dict[str, str]:
    """The versions that decide what a pipeline computes."""
    found = {"python": platform.python_version()}
    for name, distribution in _PACKAGES.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = "unknown"
    for name, distribution in _BESIDES.items():
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(distribution)
    return found


def host() -> str:
    """The machine's own name."""
    return socket.gethostname()


def git_commit() -> str | None:
    """The commit of the working directory, marked when files differ from it; None outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
