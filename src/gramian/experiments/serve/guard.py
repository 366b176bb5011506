"""Who may ask, how much, and for how long: what every request passes before the application.

Requests for other hosts are refused, so that a foreign page cannot reach a server on this machine
through a name of its own; so are changes asked for by pages of another origin.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "gramian_token"
OPEN = "/health"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
Watch = Callable[[str, int, float], None]


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many may wait.

    Args:
        bytes: of a request.
        pixels: of one image.
        data: data points in a request, and in a batch.
        waiting: data points of all requests that wait; more are refused.
        seconds: from the start of a request to its answer.
        connections: at a time.
    """

    bytes: int = 10_000_000
    pixels: int = 10_000_000
    data: int = 256
    waiting: int = 2048
    seconds: float = 30.0
    connections: int = 500


class Guard:
    """An application behind a token and limits.

    Args:
        app: the application.
        limits: of its requests.
        hosts: names under which the server may be asked, without ports; empty for any.
        token: that a request must bring, as ``Authorization: Bearer``, or as a cookie, which
            ``/?token=`` sets; None for no token.
        watch: told path, status and seconds of each request.
        proxies: names under which a proxy passes requests on: hosts, and origins of its pages.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        hosts: tuple[str, ...] = (),
        token: str | None = None,
        watch: Watch = lambda *_: None,
        proxies: tuple[str, ...] = (),
    ) -> None:
        self.app, self.limits, self.token = app, limits, token
        self.hosts, self.proxies = (*hosts, *proxies) if hosts else (), proxies
        self.watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            async with asyncio.timeout(self.limits.seconds):
                answer = self._refusal(scope) or self._greeting(scope)
                if answer is None:
                    await self.app(scope, self._counted(scope, receive), watched)
                else:
                    await answer(scope, receive, watched)
        except TimeoutError:
            if not status:
                late = refuse(504, f"no answer within {self.limits.seconds:g} s")
                await late(scope, receive, watched)
        except asyncio.CancelledError:  # the server ends
            if not status:
                await refuse(503, "this server ends")(scope, receive, watched)
        finally:
            self.watch(scope["path"], status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that may not be asked."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.hosts and without_port(host) not in self.hosts:
            return refuse(400, f"this server is not called {host!r}")
        origin = headers.get(b"origin")
        page = None if origin is None else origin.partition("://")[2]
        if page not in (None, host) and without_port(str(page)) not in self.proxies:
            return refuse(403, f"pages of {origin} may not ask this server")
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.bytes:
            return refuse(413, too_large(self.limits))
        if self.token is not None and scope["path"] != OPEN and not self._knows(scope, headers):
            text = "a token is needed: open the address that the program printed, or send it as "
            return refuse(401, text + "Authorization: Bearer TOKEN")
        return None

    def _knows(self, scope: Scope, headers: dict[bytes, str]) -> bool:
        """Whether a request brings the token."""
        bearer = headers.get(b"authorization", "").removeprefix("Bearer ")
        return any(map(self._is_token, (bearer, cookie_of(headers), asked_token(scope))))

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), (self.token or "").encode())

    def _greeting(self, scope: Scope) -> Response | None:
        """The token in the page's address becomes a cookie, so that nobody reads it there."""
        text = asked_token(scope)
        if self.token is None or scope["path"] != "/" or not self._is_token(text):
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, text, httponly=True, samesite="strict")
        return answer

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        """Receive no more bytes than allowed, whatever the request said of its length."""
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self.limits.bytes:
                raise HTTPException(413, too_large(self.limits))
            return message

        return counted


def refuse(status: int, text: str) -> Response:
    """An answer that says what is wrong."""
    return JSONResponse({"detail": text}, status)


def too_large(limits: Limits) -> str:
    """What to say to a request of too many bytes."""
    return f"a request may have {limits.bytes:,} bytes"


def without_port(host: str) -> str:
    """The name in a Host header."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def cookie_of(headers: dict[bytes, str]) -> str:
    """The token that a browser brings."""
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(headers.get(b"cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def asked_token(scope: Scope) -> str:
    """The token in the address."""
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
