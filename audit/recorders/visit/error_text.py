"""An error as text that can be stored."""

from __future__ import annotations

import traceback

from audit.texts import as_utf8


def describe_error(error: BaseException) -> str:
    """Return the error as one text, made where it happened: an exception itself may not survive pickling."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:
        text = f"{type(error).__name__} (which cannot be shown)"
    # A lone surrogate, as in a file name that is not UTF-8, cannot be stored as text.
    return as_utf8(text)[:2000]
