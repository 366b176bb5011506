"""Decode uploads in processes of their own, which are killed when a file takes too long.

A thread cannot be interrupted inside a decoder. This file is also the program of such a process,
so nothing here imports PyTorch.
"""

from __future__ import annotations

import asyncio
import math
import os
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import numpy as np
import numpy.typing as npt

from gramian.image_files import ImageFileError, decode

PROCESSES = 2  # each may hold an image of millions of pixels
SECONDS = 3.0  # for one file; ten million pixels take half a second
REQUEST = struct.Struct("<QQQ")  # lengths of the name and the content, most pixels
REPLY = struct.Struct("<QQQQ")  # channels, height, width, length of an error


class Decoders:
    """Decode image files, ``PROCESSES`` at a time.

    Args:
        most_pixels: of one image.
        seconds: for one file.
    """

    def __init__(self, most_pixels: int, seconds: float = SECONDS) -> None:
        self.most_pixels, self.seconds = most_pixels, seconds
        self.places = asyncio.Semaphore(PROCESSES)
        self.idle: list[Process] = []

    async def __call__(self, name: str, content: bytes) -> npt.NDArray[np.uint8]:
        """Decode a file to [C, H, W]; stop when cancelled.

        Raises:
            ImageFileError: the file cannot be decoded, or not in time.
        """
        async with self.places:
            process = self.idle.pop() if self.idle else await _start()
            try:
                async with asyncio.timeout(self.seconds):
                    image = await self._ask(process, name, content)
            except ImageFileError:
                self.idle.append(process)
                raise
            except BaseException as error:
                await _kill(process)
                if isinstance(error, TimeoutError):
                    text = f"{name} takes more than {self.seconds:g} s to decode: resize it"
                    raise ImageFileError(text) from error
                if isinstance(error, EOFError | ConnectionError):
                    raise ImageFileError(f"{name} cannot be decoded: the decoder failed") from error
                raise
            self.idle.append(process)
            return image

    async def _ask(self, process: Process, name: str, content: bytes) -> npt.NDArray[np.uint8]:
        assert process.stdin is not None
        assert process.stdout is not None
        called = name.encode()
        process.stdin.writelines(
            (REQUEST.pack(len(called), len(content), self.most_pixels), called, content)
        )
        await process.stdin.drain()
        *shape, length = REPLY.unpack(await process.stdout.readexactly(REPLY.size))
        if length:
            raise ImageFileError((await process.stdout.readexactly(length)).decode())
        pixels = bytearray(await process.stdout.readexactly(math.prod(shape)))
        return np.frombuffer(pixels, np.uint8).reshape(shape)

    async def close(self) -> None:
        """End the processes that wait."""
        while self.idle:
            await _kill(self.idle.pop())


async def _start() -> Process:
    """Start a process that decodes, with the path of this one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", __name__, stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
        start_new_session=True,  # out of reach of a terminal's Ctrl-C
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        await process.stdout.readexactly(1)  # it has imported all it needs
    except BaseException:
        await _kill(process)
        raise
    return process


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def main() -> None:
    """Decode files from standard input until it ends."""
    questions, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(b"\n")
    replies.flush()
    while len(header := questions.read(REQUEST.size)) == REQUEST.size:
        called, length, most_pixels = REQUEST.unpack(header)
        name, content = questions.read(called).decode(), questions.read(length)
        try:
            image = decode(name, content, most_pixels)
            replies.write(REPLY.pack(*image.shape, 0) + image.tobytes())
        except ImageFileError as error:
            text = str(error).encode()
            replies.write(REPLY.pack(0, 0, 0, len(text)) + text)
        replies.flush()


if __name__ == "__main__":
    main()
