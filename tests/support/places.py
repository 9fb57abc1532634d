"""Where the fixtures are, and the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "fixtures" / "digits" / "test"
CHECKPOINT = REPOSITORY / "fixtures" / "digits.pt"
PIPELINE = REPOSITORY / "pipelines" / "digits.py"
#: Where a test must have a new interpreter, although `sys.executable` may be a process that is forked from a warm one.
PYTHON = sys.executable
