"""The check that imports torch runs in a process of its own, beside the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checks_pictures import picture

from audit.api import run

pytestmark = pytest.mark.workers

#: Prints what came of the checks, and whether this process imported torch.
_PROGRAM = """
import json, sys
if {broken}:
    sys.executable = {executable!r}
from audit.checks.runner import run_checks
report = run_checks({store!r}, only={only!r}, record=False)
found = {{outcome.check: [outcome.status, outcome.message] for outcome in report.outcomes}}
print(json.dumps({{"torch": "torch" in sys.modules, "outcomes": found}}))
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A run of six pictures whose pipeline prints a line for each."""
    for number in range(6):
        target = tmp_path / "data" / f"class-{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        picture(number).save(target / f"{number}.png")
    (tmp_path / "pipeline.py").write_text(
        "def small(image):\n    print('chatter')\n    return image.resize((16, 16))\n\n\ntransform = [small]\n"
    )
    run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    return tmp_path / "lineage"


def _judge(store: Path, only: list[str], executable: str | None = None) -> dict[str, object]:
    program = _PROGRAM.format(store=str(store), only=only, broken=executable is not None, executable=executable)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    if executable is None and len(only) > 1:
        assert done.stdout.count("chatter") == 0
        assert "chatter" in done.stderr
    return found


def test_a_replay_finds_what_it_finds_here(store: Path) -> None:
    for file in (store.parent / "data").rglob("*.png"):
        picture(99).save(file)
    beside, here = _judge(store, ["finite", "reproducible"]), _judge(store, ["reproducible"])
    assert here["torch"]
    assert not beside["torch"]
    assert isinstance(here["outcomes"], dict)
    assert isinstance(beside["outcomes"], dict)
    assert beside["outcomes"]["reproducible"] == here["outcomes"]["reproducible"]
    assert beside["outcomes"]["reproducible"][0] == "fail"


def test_a_process_that_fails_leaves_the_check_to_this_one(store: Path) -> None:
    found = _judge(store, ["finite", "reproducible"], "/bin/false")
    assert found["torch"]
    assert isinstance(found["outcomes"], dict)
    assert found["outcomes"]["reproducible"] == ["pass", "3 visits replayed"]


def test_a_check_with_nothing_to_replay_starts_no_process(store: Path) -> None:
    (store.parent / "pipeline.py").unlink()
    found = _judge(store, ["finite", "reproducible"], "/bin/false")
    assert not found["torch"]
    assert isinstance(found["outcomes"], dict)
    assert found["outcomes"]["reproducible"][0] == "skip"
