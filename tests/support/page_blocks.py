"""Fenced blocks of pages: read them, and run them as a reader of the page would.

A block of Python with a title is a file that the reader saves; all files are there before the first block runs. Other
Python blocks run one after the other, as in one session. A block of shell commands runs line by line. Only a block that
says so in the line above it is left out: <!-- not run: why -->.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from page_sessions import run_session

from audit.cli.main import cli

_FENCE = re.compile(r'^(?:<!-- not run: ([^\n]+) -->\n)?( *)```(\w*)(?: title="([^"\n]+)")?\n(.*?)^\2```$', re.M | re.S)
#: Blocks that hold data, and what reads them.
PARSERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "ini": lambda text: ConfigParser().read_string(text),
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str | None
    text: str
    skipped: str | None


def page_blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    return [Block(language, title, code, why) for why, _, language, title, code in _FENCE.findall(text)]


def run_page(
    page: Path, folder: Path, patch: pytest.MonkeyPatch, languages: Collection[str] = ("python", "sh")
) -> dict[str, Any]:
    """Run a page's blocks of these languages in a folder, and return the names that its Python defined."""
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    blocks = [
        block
        for block in page_blocks(page.read_text(encoding="utf-8"))
        if not block.skipped and block.language in languages
    ]
    for block in blocks:
        if block.title:
            (folder / block.title).write_text(block.text)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        if block.language == "python" and not block.title:
            exec(compile(block.text, page.name, "exec"), names)
        if block.language == "sh":
            for line in block.text.replace("\\\n", "").splitlines():
                _run_line(line, folder, patch)
    return names


def _run_line(line: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Run a line of shell. Commands of audit run in this process, which has imported torch already."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        patch.setenv(name, value)
    elif words[0] == "audit" and not {"|", "&&", ";", ">"} & {*words}:
        done = CliRunner().invoke(cli, words[1:])
        assert done.exit_code == 0, f"{line}\n{done.output}"
    else:
        said, code = run_session(line, folder)
        assert code == 0, f"{line}\n{said}"


def link_fixtures(folder: Path, repository: Path) -> None:
    """Make a folder look like a clone of the repository to the commands of a page."""
    for name in ("fixtures", "pipelines"):
        os.symlink(repository / name, folder / name)
