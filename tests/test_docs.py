"""Docs are run: the command reference is generated, README snippets execute, figures and links exist."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from page_blocks import PARSERS, page_blocks
from page_sessions import mask_session, page_sessions, run_session
from places import DIGITS, PIPELINE, REPOSITORY
from warm_programs import warm_python

README = (REPOSITORY / "README.md").read_text()
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").rglob("*.md")]


#: The pages that are written from code, by the name of their script.
REFERENCES = {
    "cli": "cli.md",
    "python": "python.md",
    "format": "FORMAT.md",
    "values": "FORMAT-values.md",
    "datasets": "howto/own-dataset.md",
}


@pytest.mark.workers
@pytest.mark.parametrize("page", REFERENCES)
def test_the_references_are_what_the_code_says(page: str) -> None:
    # In a process of its own: click keeps what other tests made of the commands' help options.
    code = f"import sys, make_{page} as m; sys.stdout.reconfigure(encoding='utf-8'); sys.stdout.write(m.reference())"
    made = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY / "docs", capture_output=True, check=True)
    assert (REPOSITORY / "docs" / REFERENCES[page]).read_bytes().decode() == made.stdout.decode(), "run `make docs`"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_readme_is_short_and_begins_with_code() -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    assert any(line.startswith("```") for line in lines[:30])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that has what the README's commands speak of."""
    place = tmp_path_factory.mktemp("readme")
    for name in ("fixtures", "pipelines"):
        (place / name).symlink_to(REPOSITORY / name)
    return place


@pytest.mark.workers
def test_the_terminal_session_runs(demo: Path) -> None:
    shown = page_sessions(README)
    assert len(shown) >= 4
    for command, expected in shown:
        said, code = run_session(command, demo)
        assert code == 0, f"{command}\n{said}"
        assert mask_session(said, demo) == mask_session(expected, demo), command


@pytest.mark.workers
def test_the_loop_of_the_readme_runs_and_replays(demo: Path) -> None:
    (snippet,) = blocks("python")
    assert "`train.py`" in README
    (demo / "train.py").write_text(snippet)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    for words in (["train.py"], ["-m", "audit", "replay", "training", *map(str, range(20))]):
        done = subprocess.run([warm_python(), *words], cwd=demo, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    assert done.stdout.startswith("40 of 40 visits identical"), done.stdout  # of two epochs


@pytest.mark.parametrize("page", sorted(str(path.relative_to(REPOSITORY)) for path in PAGES))
def test_links_lead_somewhere(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert ((REPOSITORY / page).parent / target).exists(), f"{page} links to {target}"


#: Paths in examples: files of the reader's own.
EXAMPLE_PATHS = {"checks/tiny.py", "checks/thin.py"}


def test_every_path_that_a_text_names_exists() -> None:
    """Pages, docstrings and comments name files of this repository as `audit/tables.py`, or from a folder of audit/."""
    audit_folder = REPOSITORY / "audit"
    folders = [path.name for path in audit_folder.iterdir() if path.is_dir()]
    named = re.compile(
        rf"(?<![\w/.-])(?:audit|tests|docs|bench|fixtures|pipelines|{'|'.join(folders)})/[\w./-]*\.(?:py|h|c|html|md)\b"
    )
    texts = [
        path
        for folder in ("audit", "tests", "bench")
        for ending in ("py", "html", "h", "c")
        for path in (REPOSITORY / folder).rglob(f"*.{ending}")
    ]
    wrong = [
        f"{path.relative_to(REPOSITORY)} names {name}"
        for path in [*PAGES, *texts]
        for name in named.findall(path.read_text(encoding="utf-8"))
        if name not in EXAMPLE_PATHS and not (REPOSITORY / name).exists() and not (audit_folder / name).exists()
    ]
    assert wrong == []


def test_every_file_that_the_pages_for_contributors_name_exists() -> None:
    known = {path.name for path in REPOSITORY.iterdir()} | {
        path.name
        for folder in ("audit", "tests", "docs", "bench", "fixtures", "pipelines")
        for path in (REPOSITORY / folder).rglob("*.*")
    }
    for page in ("CONTRIBUTING.md", "docs/ARCHITECTURE.md"):
        names = re.findall(r"`([a-z_]\w*\.(?:py|h|c|md|txt))`", (REPOSITORY / page).read_text(encoding="utf-8"))
        assert names
        assert {*names} <= known, f"{page} names {sorted({*names} - known)}"


#: The pages whose code is run, and the file whose tests run it.
RUN_BY = {
    "README.md": "tests/test_docs.py",
    "docs/CHECKS.md": "tests/checks/test_checks_command.py",
    "docs/COOKBOOK.md": "tests/test_site.py",
    "docs/INTEGRATIONS.md": "tests/integrations/test_integration_docs.py",
    "docs/TASKS.md": "tests/test_howto.py",
    "docs/TRUST.md": "tests/test_howto.py",
    "docs/TROUBLESHOOTING.md": "tests/test_site.py",
    "docs/TUTORIAL.md": "tests/test_site.py",
    "docs/howto/ci.md": "tests/checks/test_checks_command.py",
    "docs/howto/ray.md": "tests/engines/ray/test_ray_run.py",
    **{
        f"docs/howto/{name}.md": "tests/test_howto.py"
        for name in ("own-dataset", "lightning", "trainer", "ddp", "detection", "buckets", "share-a-store")
    },
}
#: Written from code that is tested: signatures, help texts, answers to queries.
GENERATED = {"docs/cli.md", "docs/python.md", "docs/COOKBOOK.md", "docs/CHECKS.md"}


@pytest.mark.parametrize("page", sorted(str(path.relative_to(REPOSITORY)) for path in PAGES))
def test_every_block_of_a_page_is_run_or_says_why_not(page: str) -> None:
    for block in page_blocks((REPOSITORY / page).read_text(encoding="utf-8")):
        where = f"{page}: {block.text[:60]!r}"
        if block.language in PARSERS:
            PARSERS[block.language](block.text)
        elif block.language in ("python", "sh", "console", "sql"):
            assert block.skipped or page in RUN_BY, f"{where} is not run"
        else:
            assert block.language == "text" or page in GENERATED, f"{where} has no language"


def test_the_tests_that_run_a_page_name_it() -> None:
    for page, test in RUN_BY.items():
        assert Path(page).stem in (REPOSITORY / test).read_text(encoding="utf-8"), f"{test} does not run {page}"


def test_no_page_names_a_machine() -> None:
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "bench").glob("*.md")]
    for page in pages:
        text = page.read_text()
        assert "/work/" not in text, page
        assert "/root/" not in text, page


def test_every_documented_name_can_be_reached() -> None:
    """docs/python.md and `audit` say the same: a name on the page is an attribute, and every public name is on the page."""
    import audit
    from audit import errors

    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    documented = re.findall(r"^#+ `([\w.]+)`", page, re.MULTILINE)
    assert len(documented) > 40
    for name in documented:
        found: Any = audit
        for part in name.removeprefix("audit.").split("."):
            found = getattr(found, part)
    tops = {name.removeprefix("audit.").split(".")[0] for name in documented}
    assert {*audit.__all__} - tops == {"AuditError", "__version__"}
    tree = page[page.index("AuditError  ") :].split("```")[0]
    for name in re.findall(r"^[│├└─ ]*([A-Z]\w+)", tree, re.MULTILINE):
        assert issubclass(getattr(errors, name), errors.AuditError), name


def test_every_command_has_its_twin() -> None:
    """A Python program can do what a command does: each command calls the method or function named here."""
    import audit
    from audit.cli.groups import SECTIONS
    from audit.cli.main import cli

    twins: dict[str, Any] = {
        "run": (audit.run, audit.resume), "runs": (audit.Store.runs, audit.Store.tag, audit.Store.rename),
        "sql": (audit.Store.sql,), "trace": (audit.Store.trace,), "replay": (audit.Store.replay,),
        "diff": (audit.Store.diff, audit.diff_pipelines), "check": (audit.Store.check,),
        "baseline": (audit.Store.baseline, audit.Store.update_baseline), "report": (audit.Store.report,), "export": (audit.Store.export,),
        "tag": (audit.Store.tag_samples,), "select": (audit.Store.select,), "embed": (audit.Store.embed,),
        "doctor": (audit.doctor,), "ui": (audit.serve,),
        "store": (audit.Store.verify, audit.Store.compact, audit.Store.remove, audit.Store.stats, audit.Store.clean,
                  audit.Store.sign, audit.Store.attest),
    }  # fmt: skip
    without = {"config", "completion"}
    missing = {*cli.commands} - without - {*twins}
    assert not missing, f"add the method of audit that each of these commands calls to `twins` in this test: {missing}"
    placed = {name for names in SECTIONS.values() for name in names}
    assert {*cli.commands} == placed, "name each command in SECTIONS of audit/cli/groups.py"
    for found in twins.values():
        for twin in found:
            parameters = inspect.signature(twin).parameters.values()
            assert not [p for p in parameters if p.kind is p.VAR_KEYWORD], f"{twin.__qualname__} hides its options"


def test_checks_from_python_write_nothing_unless_asked(tmp_path: Path) -> None:
    import audit

    audit.run(DIGITS, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=4)
    with audit.open(tmp_path / "lineage") as store:
        before = sorted(path for path in (tmp_path / "lineage").rglob("*"))
        commits = store.reader.manifest().commit
        store.check()
        assert sorted(path for path in (tmp_path / "lineage").rglob("*")) == before
        assert store.reader.manifest().commit == commits
        store.check(record=True)
        assert store.reader.manifest().commit > commits


def test_audit_run_takes_every_option_of_a_request() -> None:
    from dataclasses import fields

    import audit
    from audit.engines.request import RunRequest

    assert {*inspect.signature(audit.run).parameters} == {field.name for field in fields(RunRequest)}
