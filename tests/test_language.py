"""Code and pages are written in plain technical English: words and phrases that readers stumbled over do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import audit

ROOT = Path(audit.__file__).parents[1]
#: What to write instead stands beside each.
STUMBLES = {
    r"\b(?:un)?told\b": "reported, named, distinguished",
    r"\bheard\b": "recorded, observed",
    r"\banew\b": "again",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bwhoever\b": "the caller, the process that",
    r"\bis dear\b": "is expensive",
    r"\bin the words of\b": "as ... says",
    r"\bof such\b": "of these",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer\b|more\b|such\b)\w": "is not a",
}
#: Texts in which the word is somebody else's: a film review of the example data.
QUOTED = ("beautifully told", "story told badly", '"told"')


def texts() -> list[Path]:
    folders = ("audit", "bench", "docs", "pipelines", "tests")
    paths = [
        path for folder in folders for ending in ("py", "html", "md") for path in (ROOT / folder).rglob(f"*.{ending}")
    ]
    return sorted({*paths, *ROOT.glob("*.md")} - {Path(__file__)})  # this file lists the phrases


@pytest.mark.parametrize("phrase", STUMBLES)
def test_no_text_uses_the_phrase(phrase: str) -> None:
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line) and not any(quoted in line for quoted in QUOTED)
    ]
    assert found == [], f"write {STUMBLES[phrase]!r} instead"


def test_no_text_holds_the_marks_of_an_unresolved_merge() -> None:
    mark = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert [str(path.relative_to(ROOT)) for path in texts() if mark.search(path.read_text())] == []


#: What a docstring that begins so describes is a result; what is asked for is the call: `Return whether`, `Return the`.
NO_VERBS = {
    "Whether",
    "The",
    "A",
    "An",
    "How",
    "What",
    "Where",
    "Why",
    "Which",
    "As",
    "For",
    "From",
    "While",
    "Meanwhile",
    "None",
}


def test_the_docstring_of_a_function_begins_with_what_the_call_does() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "audit").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        # A property is described like an attribute; the text of a command is its help.
        if not any(re.search(r"property|group|command", ast.unparse(one)) for one in node.decorator_list)
        if (text := ast.get_docstring(node)) and (text.split()[0] in NO_VERBS or not text[0].isupper())
    ]
    assert found == [], "begin with a verb, such as Return"
