"""The optional C extension, and the README as a package index shows it; the rest is in pyproject.toml.

`optional` means that an install without a compiler succeeds: audit then computes the same with numpy, slower.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from setuptools import Extension, setup

_HERE = Path(__file__).resolve().parent
# The project's address is kept in one place. It is read, not imported: audit needs torch, a build does not.
_ADDRESS = re.search(r'^PROJECT_ADDRESS = "(.+)"$', (_HERE / "audit" / "identity.py").read_text("utf-8"), re.M)[1]


def _to_absolute_path(link: re.Match[str]) -> str:
    """Give a link of the README as an address in the documentation's site: relative ones lead nowhere elsewhere."""
    target = {"bench/README.md": "docs/bench.md"}.get(link[2], link[2])
    target = target if target.startswith("docs/") else f"docs/{target}"
    return f"{link[1]}{_ADDRESS}/{re.sub(r'[.]md$', '.html', target)})"


_README = re.sub(r"(\]\()([^):#\s]+)\)", _to_absolute_path, (_HERE / "README.md").read_text("utf-8"))

_FLAGS = [] if sys.platform == "win32" else ["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"]

setup(
    long_description=_README,
    long_description_content_type="text/markdown",
    project_urls={
        "Homepage": _ADDRESS,
        "Documentation": f"{_ADDRESS}/docs/",
        "Changelog": f"{_ADDRESS}/docs/CHANGELOG.html",
    },
    ext_modules=[
        Extension(
            "audit.values._native",
            ["audit/values/_native.c"],
            depends=sorted(str(path.relative_to(_HERE)) for path in (_HERE / "audit" / "values").glob("_*.h")),
            extra_compile_args=_FLAGS,
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
