"""The command line that began a run, as its row keeps it: readable everywhere, and without what is secret in it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

#: Needs no quotes in a shell; shown as three stars.
_HIDDEN = "_hidden_value_"
#: Options whose value is not for others. `--tokenizer` and `--author` are: a word must end where it ends.
_SECRET = re.compile(
    r"-{0,2}([a-z0-9]+[-_.])*(password|passwd|passphrase|secret|token|api[-_]?key|access[-_]?key|secret[-_]?key"
    r"|private[-_]?key|credentials?)([-_.](id|key))?",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
#: Variables whose values are secret wherever they turn up.
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY", "HF_TOKEN")


def shown_command(program: str, arguments: Sequence[str]) -> str:
    """A command line with `***` in the place of passwords, tokens and keys."""
    secrets = [value for name in _VARIABLES if (value := os.environ.get(name))]
    words, hide = [os.path.basename(program)], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide and not argument.startswith("--"):
            argument = _HIDDEN
        elif equals and _SECRET.fullmatch(name):
            argument = f"{name}={_HIDDEN}"
        hide = name.startswith("-") and not equals and _SECRET.fullmatch(name) is not None
        shown = _IN_ADDRESS.sub(_HIDDEN, argument)
        for secret in secrets:
            shown = shown.replace(secret, _HIDDEN)
        words.append(shown)
    return shlex.join(words).replace(_HIDDEN, "***").encode("utf-8", "backslashreplace").decode()
