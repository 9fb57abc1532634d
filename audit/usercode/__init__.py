"""The user's own code: Python files and modules that --dataset, --pipeline and --model name.

loading         import it, and report what it raises in one sentence
import_search   which files it consists of, by its import statements
code_files      the files, and the execution of the bytes whose digests are recorded
names           which texts name code
memory          whether an imported module is what its file holds now
process         when this process began
"""

from __future__ import annotations

from audit.usercode.code_files import CodeFile, CodeFiles, find_changed_files, show_source
from audit.usercode.import_search import find_code
from audit.usercode.loading import collect_code, explain_user_errors, import_from, import_named, load_module
from audit.usercode.memory import digest_in_memory
from audit.usercode.names import is_code_name

__all__ = [
    "CodeFile",
    "CodeFiles",
    "collect_code",
    "digest_in_memory",
    "explain_user_errors",
    "find_changed_files",
    "find_code",
    "import_from",
    "import_named",
    "is_code_name",
    "load_module",
    "show_source",
]  # fmt: skip
