"""``gramian serve``: a page to try a model, and a JSON interface."""

from __future__ import annotations

import ipaddress
import logging
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveFloat, PositiveInt

from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.run_data import add_comparison_options, some_data
from gramian.experiments.cli.saved_model import (
    add_batch_options,
    add_model_options,
    load_predictor,
    named_model,
)
from gramian.experiments.cli.terminal import as_json
from gramian.experiments.escapes import say
from gramian.explained import MissingExtraError

if TYPE_CHECKING:
    from gramian.experiments.serve.answers import Answers
    from gramian.train.predict.predictor import Predictor

LOCAL = ("127.0.0.1", "localhost", "[::1]")
TOKEN = "GRAMIAN_SERVE_TOKEN"
log = logging.getLogger("gramian")


def run(words: Sequence[str]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    options = serve_parser().parse_args(list(words))
    if options.max_waiting < options.batch_size:
        raise UsageError(
            f"--max_waiting must be at least --batch_size ({options.batch_size}), the data of one "
            f"request, got {options.max_waiting}"
        )
    if options.port > 65535:
        raise UsageError(f"--port must be at most 65535, got {options.port}")
    try:
        import uvicorn

        from gramian.experiments.serve.guard import Limits
        from gramian.experiments.serve.server import GRACE, Server, build_app
        from gramian.train.runtime.signals import Stopped, StopSignals
    except ImportError as error:
        raise MissingExtraError("gramian serve", "serve") from error
    predictor = load_predictor(options)
    local = is_local(options.host)
    token = os.environ.get(TOKEN) or (None if local else secrets.token_urlsafe(24))
    limits = Limits(
        bytes=options.max_bytes, pixels=options.max_pixels, data=options.batch_size,
        waiting=options.max_waiting, seconds=options.max_seconds,
    )  # fmt: skip
    listening = listen(options.host, options.port)
    host, port = listening.getsockname()[:2]
    name = named_model(options).resolve().name
    with listening:
        shown = f"[{host}]" if ":" in host else host
        names = (*LOCAL, shown) if local else ()
        proxies = tuple(options.proxy)
        app = build_app(prepared(options, predictor), name, limits, names, token, proxies)
        url = f"http://{shown}:{port}/" + (f"?token={quote(token, safe='')}" if token else "")
        ready = as_json({"url": url, "token": token, "model": name})
        say(ready if options.json else f"{name}: {url}\n")
        sys.stdout.flush()
        log.info("Ctrl-C ends it")
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, limit_concurrency=limits.connections,
            timeout_graceful_shutdown=GRACE, server_header=False,
        )  # fmt: skip
        with StopSignals(insist=False) as signals:  # the server ends its requests, and passes on
            Server(settings).run(sockets=[listening])
        if signals.received is not None:
            raise Stopped(signals.received)


def serve_parser() -> Parser:
    """The options."""
    parser = Parser("serve", "A page to try a model, and predictions by JSON (POST /predict).")
    add_model_options(parser)
    parser.add_argument(
        "--host", default="127.0.0.1",
        help="address to listen on; any but this machine's own wants a token, which is printed "
        f"(or taken from {TOKEN})",
    )  # fmt: skip
    parser.add_argument(
        "--proxy", nargs="+", default=[], metavar="NAME",
        help="names under which a proxy in front of it is known, such as models.example.org",
    )  # fmt: skip
    parser.add_argument("--port", type=NonNegativeInt, default=8000, help="0 for any that is free")
    add_comparison_options(parser)
    parser.add_argument("--max_bytes", type=PositiveInt, default=10_000_000, help="of a request")
    parser.add_argument("--max_pixels", type=PositiveInt, default=10_000_000, help="of an image")
    parser.add_argument(
        "--max_waiting", type=PositiveInt, default=2048, help="data points that may wait"
    )
    parser.add_argument("--max_seconds", type=PositiveFloat, default=30.0, help="for one request")
    add_batch_options(parser)
    return parser


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything else is done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or answers take 40 ms longer
    return listening


def prepared(options: Namespace, predictor: Predictor) -> Answers:
    """The model with what it compares new data with, as far as there is any."""
    from gramian.experiments.explanations.comparison import Similar, Usual
    from gramian.experiments.serve.answers import Answers
    from gramian.nn.explain import TOP
    from gramian.nn.model import DKM
    from gramian.train.data import DataError

    usual, shape = Usual.load(named_model(options)), predictor.model.data_shape
    try:
        train, test = (some_data(options, split, shape) for split in ("train", "test"))
    except (DataError, UsageError) as error:
        if options.data is not None:
            raise
        log.info("similar training data are not shown: %s", error)
        return Answers(predictor, usual)
    similar = Similar(predictor, train, (TOP,)) if isinstance(predictor.model, DKM) else None
    return Answers(predictor, usual or Usual.of(predictor, test.x), similar)
