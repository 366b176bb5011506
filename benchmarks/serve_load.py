"""How many requests `gramian serve` answers, beside calling the model directly.

`python -m benchmarks.serve_load RUN --requests 10000`: one image a request, from clients on this
machine, 1, 16 and 64 at a time; requests per second, median and 99th percentile of the answer, and
the server's memory on the way. The model called directly has batches of 1 and of 64.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

import httpx2 as httpx
import numpy as np
import psutil
import torch

from gramian import Predictor


def directly(run: str, size: int, seconds: float = 3.0) -> float:
    """Images per second of the model by itself."""
    predictor = Predictor.from_pretrained(run)
    predict, samples = predictor.for_prediction(), predictor.samples()
    shape = predictor.model.data_shape
    x = torch.randint(0, 256, (size, *shape), dtype=torch.uint8)
    done, started = 0, time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() < started + seconds:
            predictor.model.likelihood.predict(predict(x), samples)
            done += size
    return done / (time.perf_counter() - started)


async def load(url: str, number: int, at_a_time: int) -> tuple[float, list[float]]:
    """Seconds for all requests, and for each."""
    shape = httpx.get(url + "model").json()["shape"]
    rng = np.random.default_rng(0)
    bodies = [
        json.dumps({"inputs": rng.integers(0, 256, (1, *shape)).tolist()}).encode()
        for _ in range(64)
    ]
    left, times = iter(range(number)), []
    limits = httpx.Limits(max_connections=at_a_time)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:

        async def ask() -> None:
            for n in left:
                started = time.perf_counter()
                reply = await client.post(
                    url + "predict",
                    content=bodies[n % 64],
                    headers={"content-type": "application/json"},
                )
                assert reply.status_code == 200, reply.text
                times.append(time.perf_counter() - started)

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(at_a_time)))
        return time.perf_counter() - started, times


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run")
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for size in (1, 64):
        print(
            f"directly, batches of {size}: {directly(options.run, size):.0f} images/s", flush=True
        )
    words = ["-m", "gramian", "serve", options.run, "--port", "0", "--json"]
    server = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None
    facts: dict[str, Any] = json.loads(server.stdout.readline())
    memory = psutil.Process(server.pid)
    asyncio.run(load(facts["url"], 200, 16))  # to warm up
    print(f"memory {memory.memory_info().rss / 1e6:.0f} MB", flush=True)
    for at_a_time in (1, 16, 64, 64):
        number = options.requests if at_a_time > 1 else options.requests // 10
        total, times = asyncio.run(load(facts["url"], number, at_a_time))
        middle, late = 1000 * np.quantile(times, [0.5, 0.99])
        print(
            f"{at_a_time} at a time: {number / total:.0f} requests/s, median {middle:.1f} ms, "
            f"99 % within {late:.1f} ms; memory {memory.memory_info().rss / 1e6:.0f} MB",
            flush=True,
        )
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main()
