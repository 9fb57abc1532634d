"""Where a finding is shown: the path of its file as the working directory sees it, never an absolute one."""

from __future__ import annotations

import os

from audit.checks.base import Finding
from audit.checks.report import Report

#: Shown where nothing better is known: findings about the run as a whole belong to the configuration.
CONFIGURATION_FILE = "audit.toml"


def path_of(report: Report, finding: Finding) -> str:
    """Return a relative path with forward slashes: of the source, else of the pipeline or the configuration."""
    if finding.source is None or "://" in finding.source:
        return _slashes(report.place or CONFIGURATION_FILE)
    if report.root is not None:
        relative = os.path.relpath(os.path.join(report.root, finding.source), os.getcwd())
        if not relative.startswith(".."):
            return _slashes(relative)
    return _slashes(finding.source)


def _slashes(path: str) -> str:
    return path.replace(os.sep, "/")
