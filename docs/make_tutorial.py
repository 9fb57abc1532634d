"""Writes the terminal sessions of docs/TUTORIAL.md: runs each command and puts what it printed under it.

python docs/make_tutorial.py
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests" / "support"))


def rewritten(text: str, folder: Path) -> str:
    """Return the page with each session's output as the commands print it now."""
    from page_sessions import run_session

    (folder / "fixtures").symlink_to(DOCS.parent / "fixtures")

    def session(block: re.Match[str]) -> str:
        lines = []
        for command in re.findall(r"^\$ (.*)$", block[1], re.MULTILINE):
            said, _ = run_session(command, folder)
            said = said.replace(f"{folder}/", "").replace("\u001b", "")
            lines += [f"$ {command}", *(line.rstrip() for line in said.splitlines())]
        return "```console\n" + "\n".join(lines) + "\n```"

    return re.sub(r"```console\n(.*?)```", session, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = DOCS / "TUTORIAL.md"
    with tempfile.TemporaryDirectory() as made:
        page.write_text(rewritten(page.read_text(encoding="utf-8"), Path(made)), encoding="utf-8")
