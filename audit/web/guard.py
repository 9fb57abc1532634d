"""Decide which requests are allowed, and what a browser may do with the response.

A page in another tab can make this browser send requests here, and a name that resolves to a loopback
address can make it believe that we are that page's own server. So the Host must be one of ours, a
request that another site caused is refused, anything but reading needs an Origin of ours, and where
the server listens to more than this machine, a token is needed. Every answer carries a policy under
which injected text could neither run nor load anything.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "audit_token"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_READING_METHODS = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_.-]{1,253}))(?::[0-9]{1,5})?")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach a server that listens there."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuse forbidden requests before any page handles them."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = LOOPBACK, any_address: bool = False, token: str | None = None
    ) -> None:
        self._app = app
        self._hosts = {host.lower() for host in (*LOOPBACK, *hosts)}
        self._any_address = any_address
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers) or self._token_answer(scope, headers)
        answer: ASGIApp = refusal if refusal is not None else self._app

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    given[name] = value
                if "cache-control" not in given:
                    given["cache-control"] = "no-store"
            await send(message)

        await answer(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        if not self._is_ours(headers.get("host", "")):
            return _refuse("This server does not answer requests for this host name.", 421)
        if method not in (*_READING_METHODS, "POST"):
            return _refuse("Only read requests are allowed.", 405)
        origin = headers.get("origin")
        if origin is not None and not self._is_same(origin, headers.get("host", "")):
            return _refuse("Requests from another site are not allowed.", 403)
        if method == "POST" and origin is None and headers.get("sec-fetch-site") != "same-origin":
            return _refuse("A request that changes something must come from this server's own pages.", 403)
        # Older browsers do not send this header; the checks above and SameSite protect them.
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
        if site not in ("none", "same-origin") and (
            mode != "navigate" or headers.get("sec-fetch-dest") not in (None, "document")
        ):
            return _refuse("Requests from another site are not allowed.", 403)
        return None

    def _is_ours(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        if name in self._hosts:
            return True
        if not self._any_address:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_same(self, origin: str, host: str) -> bool:
        return urlsplit(origin).netloc.lower() == host.lower() and urlsplit(origin).scheme in ("http", "https")

    def _token_answer(self, scope: Scope, headers: Headers) -> Response | None:
        """Return None if the request may pass; else a refusal, or a cookie for a token in the address."""
        if self._token is None:
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if (scheme.lower() == "bearer" and self._matches(bearer)) or self._matches(_cookie(headers)):
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in asked if name == "token"), "")
        if not self._matches(given) or scope["method"] not in _READING_METHODS:
            return _refuse("This server needs its token: open the address that `audit ui` printed.", 401)
        rest = urlencode([(name, value) for name, value in asked if name != "token"])
        # A browser would read a path that begins with two slashes as another host.
        path = "/" + scope["path"].lstrip("/")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
        answer.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
        return answer

    def _matches(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _host_name(host: str) -> str | None:
    # With our own pattern, because URL parsers differ in what they accept at the end of a host.
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else None


def _refuse(sentence: str, code: int) -> Response:
    return PlainTextResponse(f"audit: {sentence}\n", status_code=code)
