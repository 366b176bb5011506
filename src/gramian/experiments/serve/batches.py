"""Requests that wait at the same time share a batch; a model has one thread, which never waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from gramian.experiments.serve.answers import Answer
from gramian.explained import Explained

Work = Callable[[Tensor, list[int]], list[Answer]]


class TooBusyError(Explained, Exception):
    """More data wait than may."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """The data of one request."""

    x: Tensor
    num_similar: int
    answers: asyncio.Future[list[Answer]]


class Batches:
    """A queue in front of a model.

    While a batch is worked on, requests gather; the next batch takes all of them, up to ``most``
    data. So a single request is answered at once, and many at a time cost little more than one.

    Args:
        work: answers for data and, for each, the number of similar training data.
        most: data in a batch.
        queue: data that may wait.
        watch: told the size of each batch.
    """

    def __init__(
        self, work: Work, most: int, queue: int, watch: Callable[[int], None] = lambda _: None
    ) -> None:
        self.work, self.most, self.queue, self.watch = work, most, queue, watch
        self.waiting: deque[Waiting] = deque()
        self.new = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "model")

    @property
    def num_waiting(self) -> int:
        """Data that nobody has begun to work on."""
        return sum(len(each.x) for each in self.waiting)

    async def submit(self, x: Tensor, num_similar: int) -> list[Answer]:
        """Answers for the data of one request.

        Raises:
            TooBusyError: too many others wait.
        """
        if self.num_waiting + len(x) > self.queue:
            raise TooBusyError
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self.waiting.append(Waiting(x, num_similar, answers))
        self.new.set()
        return await answers

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.new.wait()
            self.new.clear()
            while batch := self._next():
                self.watch(sum(len(each.x) for each in batch))
                for each, found in zip(
                    batch,
                    await loop.run_in_executor(self.thread, self._answers, batch),
                    strict=True,
                ):
                    if each.answers.done():  # whoever asked has gone
                        continue
                    if isinstance(found, Exception):
                        each.answers.set_exception(found)
                    else:
                        each.answers.set_result(found)

    def _next(self) -> list[Waiting]:
        """Requests whose data fill a batch; at least one, if any is left."""
        batch: list[Waiting] = []
        size = 0
        while self.waiting:
            first = self.waiting[0]
            if first.answers.done():
                self.waiting.popleft()
                continue
            if batch and size + len(first.x) > self.most:
                break
            size += len(first.x)
            batch.append(self.waiting.popleft())
        return batch

    def _answers(self, batch: list[Waiting]) -> list[list[Answer] | Exception]:
        """Of all together; if that fails, each by itself, so that nobody pays for another."""
        try:
            x = torch.cat([each.x for each in batch])
            num_similar = [each.num_similar for each in batch for _ in range(len(each.x))]
            answers = self.work(x, num_similar)
        except Exception as error:
            if len(batch) == 1:
                return [error]
            return [self._answers([each])[0] for each in batch]
        parts: list[list[Answer] | Exception] = []
        start = 0
        for each in batch:
            parts.append(answers[start : start + len(each.x)])
            start += len(each.x)
        return parts

    def close(self) -> None:
        """End the thread."""
        self.thread.shutdown(wait=False, cancel_futures=True)
