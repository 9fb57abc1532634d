"""Checks of one's own in single files: found, run when the user says so, and refused otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checks_world import World
from click.testing import CliRunner, Result

from audit.checks.runner import run_checks
from audit.cli.main import cli
from audit.errors import CodeNotTrusted, UsageError

Plant = Callable[..., Path]
TINY = '''
from pathlib import Path

from audit.checks.base import Check, Finding, Option, settings

Path("executed").touch()


class Tiny(Check):
    """Find small files."""

    name = "tiny"
    description = "Very small files."
    severity = "error"
    options = settings(bytes=Option(1_000, "Report files smaller than this."))

    def run(self, context):
        limit = context.options["bytes"]
        for row in context.offenders(f"SELECT index, source, source_bytes FROM {context.samples} WHERE source_bytes < {limit}"):
            yield Finding(f"{row['source']} has {row['source_bytes']} bytes.", index=row["index"], source=row["source"])
'''


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one check file, away from this repository's configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/tiny.py").write_text(TINY)
    return tmp_path


def audit(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def small(w: World) -> None:
    w.sample(5)["source_bytes"] = 7


def test_a_file_that_the_user_names_runs(planted: Plant) -> None:
    store = planted(small)
    outcome = run_checks(str(store), checks=["rules/tiny.py"], only=["tiny"]).outcome("tiny")
    assert [finding.index for finding in outcome.findings] == [5]
    reported = audit("check", "--store", str(store), "--checks", "rules/*.py", "--only", "tiny", "--json")
    assert reported.exit_code == 1
    assert json.loads(reported.stdout)["checks"][0]["findings"][0]["source"] == "dog/005.png"


def test_a_clean_run_passes_it(planted: Plant) -> None:
    assert run_checks(str(planted()), checks=["rules/tiny.py"], only=["tiny"]).outcome("tiny").status == "pass"


def test_what_only_the_configuration_names_needs_trust(planted: Plant, elsewhere: Path) -> None:
    store = planted(small)
    Path("audit.toml").write_text('[checks]\npaths = ["rules/*.py"]\n[checks.tiny]\nbytes = 8\n')
    refused = audit("check", "--store", str(store))
    assert refused.exit_code == 1
    assert "rules/tiny.py" in refused.stderr
    assert "--trust" in refused.stderr
    assert not Path("executed").exists()
    with pytest.raises(CodeNotTrusted) as error:
        run_checks(str(store), only=["finite"])
    assert error.value.files == ["rules/tiny.py"]
    assert audit("check", "--store", str(store), "--trust", "--only", "tiny").exit_code == 1
    assert Path("executed").exists()
    # Naming the file is saying so too; its options come from the configuration.
    report = run_checks(str(store), checks=[elsewhere / "rules/tiny.py"], only=["tiny"])
    assert report.outcome("tiny").total == 1


def test_paths_are_relative_to_the_configuration(
    planted: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = planted(small)
    (tmp_path / "audit.toml").write_text('[checks]\npaths = ["rules/tiny.py"]\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    report = run_checks(str(store), config=tmp_path / "audit.toml", trust=True, only=["tiny"])
    assert report.outcome("tiny").status == "fail"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\n", "has no check"),
        ("import nowhere_at_all\n", "nowhere_at_all"),
        (TINY.replace('"tiny"', '"finite"'), "already has"),
        (TINY.replace('    name = "tiny"\n', ""), "has no name"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(planted: Plant, text: str, says: str) -> None:
    Path("rules/other.py").write_text(text)
    with pytest.raises(UsageError, match=says):
        run_checks(str(planted()), checks=["rules/other.py"])


def test_a_pattern_without_a_file_does_not_disable_a_rule(planted: Plant) -> None:
    Path("audit.toml").write_text('[checks]\npaths = ["ruels/*.py"]\n')
    result = audit("check", "--store", str(planted()), "--trust")
    assert (result.exit_code, "ruels" in result.stderr) == (2, True)


def test_names_are_known_and_listed(planted: Plant) -> None:
    assert "tiny (error)" in audit("check", "--list", "--checks", "rules/tiny.py").stdout
    result = audit("check", "--store", str(planted()), "--checks", "rules/tiny.py", "--only", "tny")
    assert (result.exit_code, "tiny" in result.stderr) == (2, True)


def test_a_run_with_check_refuses_before_it_records(tmp_path: Path) -> None:
    Path("audit.toml").write_text('[checks]\npaths = ["rules/*.py"]\n')
    (tmp_path / "pictures").mkdir()
    result = audit("run", "pictures", "--check", "--store", "lineage")
    assert result.exit_code == 1
    assert "rules/tiny.py" in result.stderr
    assert not Path("lineage").exists()
