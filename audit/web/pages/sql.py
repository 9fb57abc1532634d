"""SQL: run a query. The query is in the address, so that it can be shared; it runs in the sandbox."""

from __future__ import annotations

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from audit.errors import QueryError, UsageError
from audit.lineage.queries.vocabulary import EXAMPLES, vocabulary
from audit.web.app_state import AppState
from audit.web.respond import Page

_ROWS = 500
_LONGEST = 20_000
_FILES: dict[str, tuple[Literal["csv", "parquet"], str]] = {
    "csv": ("csv", "text/csv; charset=utf-8"),
    "parquet": ("parquet", "application/vnd.apache.parquet"),
}


def sql(state: AppState, request: Request) -> Page | Response:
    """Return the editor, and the answer when the address holds a query."""
    query = request.query_params.get("q", "")
    if len(query) > _LONGEST:
        raise UsageError(
            f"A query on this page may have at most {_LONGEST:,} characters.", hint="Run it with: audit sql QUERY"
        )
    save = request.query_params.get("save", "")
    if save:
        return _file(state, query, save)
    data: dict[str, Any] = {
        "q": query,
        "columns": [],
        "rows": [],
        "more": False,
        "seconds": None,
        "error": None,
        "hint": None,
    }
    code = 200
    if query.strip():
        try:
            answer = state.sandbox.query(query, limit=_ROWS)
            data |= {"columns": answer.columns, "rows": answer.rows, "more": answer.more, "seconds": answer.seconds}
        except QueryError as error:
            data |= {"error": error.message, "hint": error.hint}
            code = 422
    else:
        state.sandbox.start()
    runs = state.store.runs()
    # An index without its run names a sample only if there is one run.
    only_run = runs[0].run_id if len(runs) == 1 else None
    fragment = request.headers.get("x-partial") == "1"
    return Page(
        "sql_answer.html" if fragment else "sql.html",
        data,
        200 if fragment else code,
        {"examples": EXAMPLES, "only_run": only_run},
    )


def words(state: AppState, request: Request) -> Page:
    """Return the words for completion: tables, their columns, and SQL keywords."""
    return Page("error.html", {**vocabulary()})


def _file(state: AppState, query: str, save: str) -> Response:
    if save not in _FILES:
        raise UsageError(f"{save[:20]!r} is not a format.", hint="Choose csv or parquet.")
    form, media = _FILES[save]
    answer = state.sandbox.query(query, form=form)
    return Response(
        answer.body, media_type=media, headers={"content-disposition": f'attachment; filename="audit.{save}"'}
    )
