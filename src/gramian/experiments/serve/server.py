"""The application: the page, predictions of JSON and of files, health and metrics."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Annotated, Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, Field
from torch import Tensor

from gramian._version import __version__
from gramian.experiments.serve.answers import Answer, Answers
from gramian.experiments.serve.batches import Batches, TooBusyError
from gramian.experiments.serve.decoders import Decoders
from gramian.experiments.serve.guard import Guard, Limits
from gramian.experiments.web_page import POLICY, render
from gramian.gram.errors import NumericalError
from gramian.image_files import ImageFileError
from gramian.train.data.data_errors import DataError
from gramian.train.data.other_images import as_images_of
from gramian.train.runtime.signals import Stopped

MOST_SIMILAR = 50
NumSimilar = Annotated[
    int, Query(ge=0, le=MOST_SIMILAR, description="training data like each, to show")
]
GRACE, END = 4, 8.0  # seconds after a signal: requests under way are refused; the process ends
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Question(BaseModel):
    """Data of the shape that the model takes: rows of numbers, or images [C][H][W], 0 to 255."""

    inputs: list[Any] = Field(min_length=1, description="one or more data points")


class Reply(BaseModel):
    """An answer for each data point, in their order."""

    predictions: list[Answer]


class Metrics:
    """What the server counts, for Prometheus."""

    def __init__(self) -> None:
        all_ = self.registry = CollectorRegistry()
        self.requests = Counter("gramian_requests", "answers", ["path", "status"], registry=all_)
        self.seconds = Histogram("gramian_request_seconds", "of a request", registry=all_)
        self.batch = Histogram("gramian_batch_data", "of a batch", buckets=SIZES, registry=all_)
        self.waiting = Gauge("gramian_waiting_data", "that nobody works on yet", registry=all_)


class Server(uvicorn.Server):
    """End at the first signal: after the requests under way, or without them after ``END`` seconds.

    At a second Ctrl-C uvicorn's own would leave the application behind, with a traceback.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal counts."""
        if not self.should_exit:
            super().handle_exit(sig, frame)
            timer = threading.Timer(END, give_up, [sig])  # a prediction cannot be interrupted
            timer.daemon = True
            timer.start()


def give_up(sig: int) -> None:
    """End the process, whatever it does."""
    sys.stderr.write("gramian: a prediction under way was given up\n")
    os._exit(Stopped(sig).exit_code)


def build_app(
    answers: Answers,
    name: str,
    limits: Limits = Limits(),
    hosts: tuple[str, ...] = (),
    token: str | None = None,
    proxies: tuple[str, ...] = (),
) -> FastAPI:
    """The application.

    Args:
        answers: the model.
        name: of the model, for the page.
        limits: of requests.
        hosts: names of this server; empty for any.
        token, proxies: see ``Guard``.
    """
    metrics = Metrics()
    batches = Batches(answers, limits.data, limits.waiting, metrics.batch.observe)
    metrics.waiting.set_function(lambda: batches.num_waiting)
    decode = Decoders(limits.pixels)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batches.run())
        yield
        worker.cancel()
        batches.close()
        await decode.close()

    app = FastAPI(
        title=f"Gramian: {name}",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
    )
    paths = {"/", "/health", "/metrics", "/model", "/predict", "/predict/files", "/openapi.json"}

    def watch(path: str, status: int, seconds: float) -> None:
        metrics.requests.labels(path if path in paths else "other", str(status)).inc()
        metrics.seconds.observe(seconds)

    app.add_middleware(Guard, limits=limits, hosts=hosts, token=token, watch=watch, proxies=proxies)
    facts = describe(answers, name, limits)
    page = render(
        str(__package__), "serve.html.j2", "serve.css", "serve.js",
        policy=f"{POLICY}; connect-src 'self'", title=name, facts_json=facts,
    )  # fmt: skip

    async def answer(x: Tensor, similar: int) -> dict[str, list[Answer]]:
        try:
            return {"predictions": await batches.submit(x, similar)}
        except TooBusyError:
            text = f"{limits.waiting} data points wait already: ask again"
            raise HTTPException(503, text, {"Retry-After": "1"}) from None
        except NumericalError as error:
            raise HTTPException(500, str(error)) from error
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> JSONResponse:
        """What is wrong, without the request itself, which may be long."""
        parts = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        return JSONResponse({"detail": "; ".join(parts)[:1000]}, 422)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        return page

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "ok", "model": name, "version": __version__}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def counts() -> str:
        """What was asked, for Prometheus."""
        return generate_latest(metrics.registry).decode()

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """What the model takes, what it answers, and the limits of a request."""
        return facts

    @app.post("/predict", response_model=Reply)
    async def predict(question: Question, similar: NumSimilar = 0) -> dict[str, list[Answer]]:
        """Predictions for rows of numbers, or for images as numbers."""
        shape = answers.predictor.model.data_shape
        are_bytes = len(shape) == 3 and answers.predictor.takes_bytes
        return await answer(as_points(question.inputs, shape, limits, are_bytes), similar)

    @app.post("/predict/files", response_model=Reply)
    async def predict_files(
        files: list[UploadFile], similar: NumSimilar = 0
    ) -> dict[str, list[Answer]]:
        """Predictions for image files, which are brought to the size that the model takes."""
        shape = answers.predictor.model.data_shape
        if len(shape) != 3:
            raise HTTPException(422, f"the model takes rows of {shape[0]} numbers, not images")
        if not answers.predictor.takes_bytes:
            raise HTTPException(422, "the model takes floating-point images, as JSON (/predict)")
        if len(files) > limits.data:
            raise HTTPException(413, f"a request may have {limits.data} data points")
        images = []
        for number, file in enumerate(files, start=1):
            named = f"file {number} ({str(file.filename)[:80]!r})"
            try:
                image = torch.from_numpy(await decode(named, await file.read()))
                images.append(await run_in_threadpool(as_images_of, image[None], shape))
            except (ImageFileError, DataError) as error:
                raise HTTPException(422, str(error)) from error
        return await answer(torch.cat(images), similar)

    return app


def as_points(inputs: list[Any], shape: tuple[int, ...], limits: Limits, are_bytes: bool) -> Tensor:
    """Numbers of a request as data of the model, which takes bytes or any numbers."""
    if len(inputs) > limits.data:
        raise HTTPException(413, f"a request may have {limits.data} data points")
    try:
        values = np.asarray(inputs, dtype=object)
        if not set(map(type, values.flat)) <= {int, float}:  # float64 would take "7" and true
            raise TypeError
        x = values.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise HTTPException(422, "inputs must be numbers, as many for each data point") from error
    if x.shape[1:] != shape:
        raise HTTPException(422, f"the model takes data of shape {shape}, got {x.shape[1:]}")
    if not np.isfinite(x).all():
        raise HTTPException(422, "inputs must be finite numbers")
    if not are_bytes:
        return torch.from_numpy(x)
    if x.min() < 0 or x.max() > 255:
        raise HTTPException(422, "values of pixels must lie between 0 and 255")
    return torch.from_numpy(x.round().astype(np.uint8))


def describe(answers: Answers, name: str, limits: Limits) -> dict[str, Any]:
    """What the page, and whoever asks, has to know."""
    model = answers.predictor.model
    return {
        "name": name,
        "version": __version__,
        "shape": list(model.data_shape),
        "classes": list(answers.predictor.class_names),
        "similar": answers.similar is not None,
        "strangeness": answers.usual is not None,
        "limits": {"bytes": limits.bytes, "pixels": limits.pixels, "data": limits.data},
    }
