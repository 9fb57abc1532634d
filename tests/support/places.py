"""Where the fixtures are."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "fixtures" / "digits" / "test"
CHECKPOINT = REPOSITORY / "fixtures" / "digits.pt"
PIPELINE = REPOSITORY / "pipelines" / "digits.py"
