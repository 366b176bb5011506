"""Empty environments, to try in them what users install."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


class ReleaseError(Exception):
    """Something that must not be published."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing but what is installed into it: no pip, no setuptools."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, python: str, below: Environment | None = None) -> Environment:
        """A new one, which also sees what is installed in the one ``below``.

        So packages of several GB are installed once, and those of an extra still stay apart.
        """
        run([python, "-m", "venv", "--without-pip", str(folder)])
        made = cls(folder)
        made.work.mkdir()
        if below is not None:
            (made.packages / "below.pth").write_text(f"{below.packages}\n")
        return made

    @property
    def python(self) -> str:
        """The interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        """Where packages are installed."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    @property
    def work(self) -> Path:
        """Where its commands run: not in the repository, whose files they must not find."""
        return self.folder / "work"

    def install(self, requirement: str, constraints: Path) -> None:
        """Install by the pip of this program."""
        words = ["--quiet", "--quiet", "--disable-pip-version-check", "-c", str(constraints)]
        pip = [sys.executable, "-m", "pip", "--python", self.python]
        run([*pip, "install", *words, requirement], self.work)

    def code(self, text: str) -> str:
        """What a piece of Python prints."""
        return run([self.python, "-c", text], self.work)

    def module(self, *words: str) -> str:
        """What ``python -m`` prints."""
        return run([self.python, "-m", *words], self.work)

    def gramian(self, *words: str) -> str:
        """What our program prints."""
        return self.module("gramian", *words)


def run(words: list[str], folder: Path | None = None) -> str:
    """What a command prints on standard output; it must succeed."""
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """The variables, without those by which Python would find packages of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONNOUSERSITE": "1"}
