"""The routes of the web app, in one table; no address contains a path on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from audit.report.html.environment import SHARED_ASSETS, read_shared
from audit.web.app_state import AppState
from audit.web.guard import HEADERS, LOOPBACK, Guard
from audit.web.pages import checks, compare, curate, curves, gallery, overlay, run, runs, sql, trace, training, value
from audit.web.pages import map as map_page
from audit.web.respond import STATIC, Page, form_page, page, respond, warm

_CACHE_FOREVER = {"cache-control": "public, max-age=31536000, immutable"}


def _serve_shared(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2]
    return Response(
        read_shared(name), media_type="text/css" if name.endswith(".css") else "text/javascript", headers=_CACHE_FOREVER
    )


def _icon(_: Request) -> Response:
    return Response((STATIC / "icon.svg").read_bytes(), media_type="image/svg+xml", headers=_CACHE_FOREVER)


ROUTES = [
    Route("/", page(runs.runs)),
    Route("/run/{run}", page(run.run)),
    Route("/run/{run}/panel/{panel:str}", page(run.panel)),
    Route("/run/{run}/checks", page(checks.checks)),
    Route("/run/{run}/curves", page(curves.curves)),
    Route("/run/{run}/cell/{label:int}/{predicted:str}", page(gallery.cell)),
    Route("/run/{run}/gallery", page(gallery.gallery)),
    Route("/run/{run}/gallery/block", page(gallery.block)),
    Route("/run/{run}/gallery/filters", page(gallery.filters)),
    Route("/run/{run}/export", page(curate.export)),
    Route("/run/{run}/tag", form_page(curate.tag), methods=["POST"]),
    Route("/run/{run}/amend", form_page(curate.amend), methods=["POST"]),
    Route("/run/{run}/gallery/count", page(gallery.count)),
    Route("/run/{run}/trace/{index:int}", page(trace.trace)),
    Route("/run/{run}/trace/{index:int}/steps", page(trace.steps)),
    Route("/run/{run}/trace/{index:int}/replay", page(trace.replay), methods=["POST"]),
    Route("/run/{run}/picture/{index:int}/{stage:int}", page(trace.picture)),
    Route("/run/{run}/value/{index:int}/{stage:int}", page(value.value)),
    Route("/run/{run}/value/{index:int}/{stage:int}", page(value.derive), methods=["POST"]),
    Route("/run/{run}/source/{index:int}", page(trace.source)),
    Route("/run/{run}/overlay/{index:int}/{stage:int}", page(overlay.overlay)),
    Route("/run/{run}/heat/{index:int}/{number:int}", page(overlay.heat)),
    Route("/run/{run}/map", page(map_page.sample_map)),
    Route("/run/{run}/map/points", page(map_page.points)),
    Route("/run/{run}/trace/{index:int}/similar", page(map_page.similar_page)),
    Route("/run/{run}/training", page(training.training_page)),
    Route("/run/{run}/training/series", page(training.series)),
    Route("/compare", page(compare.compare)),
    Route("/compare/result", page(compare.result)),
    Route("/compare/stages", page(compare.stages)),
    Route("/compare/picture", page(compare.picture)),
    Route("/sql", page(sql.sql)),
    Route("/sql/words", page(sql.words)),
    *(Route(f"/static/{name}", _serve_shared) for name in SHARED_ASSETS),
    Route("/favicon.ico", _icon),
    Mount("/static", StaticFiles(directory=STATIC)),
]


def _answer_missing(request: Request, error: Exception) -> Response:
    code = error.status_code if isinstance(error, HTTPException) else 500
    data = {"error": "There is no such page.", "hint": "Go to the list of runs."}
    if code == 405:
        data = {"error": "This page does not support this request.", "hint": "Go to the list of runs."}
    return respond(request, Page("error.html", data, code))


def _answer_broken(request: Request, _: Exception) -> Response:
    """Answer what no page has caught. It is made outside of the guard, so it brings the headers itself."""
    answer = PlainTextResponse("audit: An internal error occurred.\n", 500)
    answer.headers.update({**HEADERS, "cache-control": "no-store"})
    return answer


def build(
    location: str,
    *,
    hosts: Iterable[str] = LOOPBACK,
    any_address: bool = False,
    token: str | None = None,
    replay: bool = True,
    trust: bool = False,
    write: bool = False,
    seconds: float = 20.0,
) -> Starlette:
    """Return the app over one store. Raises StoreError when there is none.

    A replay runs the recorded pipeline only if this machine recorded it, or with `trust`.
    """
    state = AppState(location, replay=replay, trust=trust, write=write, seconds=seconds)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state.sandbox.start()
        state.answers.ask("templates", warm)
        run.compute_ahead(state, state.store)
        yield
        state.close()

    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Guard, hosts=hosts, any_address=any_address, token=token)],
        exception_handlers={HTTPException: _answer_missing, Exception: _answer_broken},
        lifespan=lifespan,
    )
    app.state.audit = state
    return app
