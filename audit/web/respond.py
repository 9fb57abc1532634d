"""Turn a page's plain data into HTML or JSON; an error is a page too."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from audit import plainjson
from audit.errors import AuditError, NotFound, StoreError, UsageError
from audit.report.html.environment import SHARED_ASSETS, environment, read_shared
from audit.tables import VisitRow
from audit.web.app_state import AppState

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE / "templates"
STATIC = HERE / "static"

log = logging.getLogger("audit.web")


@dataclass(slots=True)
class Page:
    """What a page shows: a template and the data that JSON gives too. `extra` is for the template alone."""

    template: str
    data: dict[str, Any]
    code: int = 200
    extra: dict[str, Any] = field(default_factory=dict)


Handler = Callable[[AppState, Request], Page | Response]


def page(handler: Handler) -> Callable[[Request], Response]:
    """Return an endpoint that runs a handler in a thread and answers as HTML or JSON."""

    def endpoint(request: Request) -> Response:
        state: AppState = request.app.state.audit
        try:
            answer = handler(state, request)
        except AuditError as error:
            answer = error_page(error)
        except Exception:
            log.exception("a page failed")
            answer = Page(
                "error.html",
                {
                    "error": "An internal error occurred.",
                    "hint": "See the terminal that runs `audit ui` for the traceback.",
                },
                500,
            )
        return answer if isinstance(answer, Response) else respond(request, answer)

    return endpoint


Form = Mapping[str, str]
FormHandler = Callable[[AppState, Request, Form], Page | Response]
_LARGEST_FORM = 2**20


def form_page(handler: FormHandler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint for a form: its fields are read here, and the handler runs in a thread."""

    async def endpoint(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _LARGEST_FORM:
                return respond(request, error_page(UsageError("The form is too large.")))
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        return await run_in_threadpool(page(lambda state, asked: handler(state, asked, fields)), request)

    return endpoint


def respond(request: Request, answer: Page) -> Response:
    """Return the page as HTML, or its data as JSON."""
    if wants_json(request):
        return Response(plainjson.dumps(answer.data), answer.code, media_type="application/json")
    template = environment(TEMPLATES).get_template(answer.template)
    text = template.render(
        **answer.data, **answer.extra, asset=asset, url=url, trace_url=trace_url, path=request.url.path
    )
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), answer.code)


def warm() -> None:
    """Compile every template, those that pages share with reports too, so that the first visitor does not wait for it."""
    made = environment(TEMPLATES)
    for name in made.list_templates(extensions=["html", "svg"]):
        made.get_template(name)
    for path in STATIC.rglob("*.*"):
        asset(path.relative_to(STATIC).as_posix())


def error_page(error: AuditError) -> Page:
    """Return an error as a page: what happened and what to do next."""
    code = (
        404
        if isinstance(error, NotFound)
        else 400
        if isinstance(error, UsageError)
        else 500
        if isinstance(error, StoreError)
        else 422
    )
    return Page("error.html", {"error": error.message, "hint": error.hint}, code)


def wants_json(request: Request) -> bool:
    """Return whether the request has ?format=json, or an Accept header that prefers JSON to HTML."""
    if request.query_params.get("format") == "json":
        return True
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def url(*parts: object, **query: object) -> str:
    """Return an address with each part and value quoted and empty ones removed."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    kept = {name: value for name, value in query.items() if value is not None and value != ""}
    return path + (f"?{urlencode(kept)}" if kept else "")


def trace_url(run_id: str, visit: VisitRow) -> str:
    """Return the address of one visit's trace, always with epoch and visit, whose defaults are the last ones."""
    return url("run", run_id, "trace", visit["index"], epoch=visit["epoch"], visit=visit["visit"])


@lru_cache(maxsize=64)
def asset(name: str) -> str:
    """Return the address of a static file, with a digest so that a cache never serves an old version."""
    data = read_shared(name).encode() if name in SHARED_ASSETS else (STATIC / name).read_bytes()
    return f"/static/{name}?{hashlib.sha256(data).hexdigest()[:10]}"


def whole_number(request: Request, name: str, default: int | None = None) -> int | None:
    """Return a whole number from the address, or the default."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {text[:40]!r}.") from None
    if not 0 <= value < 2**63:
        raise UsageError(f"{name} is out of range.")
    return value
