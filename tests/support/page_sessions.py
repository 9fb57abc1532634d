"""Terminal sessions that pages show: read them, run them, and compare what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

from places import REPOSITORY
from warm_programs import warm_folder


def page_sessions(text: str) -> list[tuple[str, str]]:
    """Return each command of a page's `console` blocks, with what the page shows after it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        assert parts[0] == ""
        found += list(zip(parts[1::2], parts[2::2], strict=True))
    return found


def run_session(command: str, folder: Path) -> tuple[str, int]:
    """Run a command as a shell would in that folder, with the programs of this environment (`torchrun`), activated or not.

    `audit` and `python` are forked from a process that has imported torch.
    """
    environment = os.environ | {
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(warm_folder()), sysconfig.get_path("scripts"), os.environ["PATH"]]),
        "PYTHONPATH": str(REPOSITORY),
    }
    words = ["sh", "-c", command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, timeout=600)
    return done.stdout + done.stderr, done.returncode


def mask_session(text: str, folder: Path) -> str:
    """Return a session's text without what differs each time: run ids, seconds, sizes, the folder, trailing spaces."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN", text.replace(f"{folder}/", ""))
    text = re.sub(r"about [\d.]+ [KMG]iB", "SIZE", text)
    return re.sub(r"[ \t]+$", "", re.sub(r"\d+(\.\d+)? s$", "SECONDS", text, flags=re.MULTILINE), flags=re.MULTILINE)
