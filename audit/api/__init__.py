"""The library's front: every command of the command line as a function or a method.

store  `Store` and `open`: what reads or amends a store
runs   `run`, `resume`, `record`, `doctor`, `diff_pipelines`: what makes runs
"""

from audit.api.runs import diff_pipelines, doctor, record, resume, run
from audit.api.store import Store, open

__all__ = ["Store", "diff_pipelines", "doctor", "open", "record", "resume", "run"]
