"""``make release``: build, check and try what is published, and only then put it into dist/.

Everything is made from the last commit, outside the repository:

1. sdist and wheel, twice and in two ways: the digests must be equal;
2. their metadata and their files;
3. the wheel in empty environments, without extras and with each, on the dependencies of each
   constraint file (``tools/installed.py``);
4. the licences of all that comes with it (``tools/licences.py``), and a bill of materials.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.environments import Environment, ReleaseError, run
from tools.installed import USES, check_missing, check_plain, say
from tools.licences import check_licences, installed_licences

ROOT = Path(__file__).parents[1]
PACKAGE = "src/gramian/"
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile",
            "constraints.txt", "constraints-oldest.txt", "docs/index.md", "tests/conftest.py",
            "examples/digits.py")  # fmt: skip
NOT_IN_SDIST = ("tests/fixtures/", "dist/", "runs/", ".venv")
BESIDE = {"docs/ERRORS.md": "gramian/experiments/cli/commands/ERRORS.md"}  # for gramian help
VERSIONS = """
import platform
from importlib.metadata import version
names = "torch", "numpy", "scipy", "scikit-learn"
print("python", platform.python_version(), *(f"- {name} {version(name)}" for name in names))
"""
MOST_BYTES = 10_000_000  # of a file; PyPI takes ten times as much


def main(words: Sequence[str] | None = None) -> int:
    """Do all of it, or stop at the first fault; the exit code."""
    options = parser().parse_args(words)
    try:
        with TemporaryDirectory(prefix="gramian-release-") as folder:
            release(Path(folder), options.constraints, options.python)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser("release", description=__doc__)
    made.add_argument(
        "--constraints", nargs="+", type=Path, default=[ROOT / "constraints.txt"],
        help="versions to try it with; licences and bill of materials are those of the first",
    )  # fmt: skip
    made.add_argument("--python", default=sys.executable, help="of the environments")
    return made


def release(folder: Path, constraints: Sequence[Path], python: str) -> None:
    """All steps in their order, in a folder of their own."""
    if git("status", "--porcelain"):
        raise ReleaseError("the last commit is published, and there are changes after it")
    source, built = build_twice(folder)
    files = sorted(built.iterdir())
    wheel = next(path for path in files if path.suffix == ".whl")
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    check_files(files, git("ls-files").splitlines())
    version = wheel.name.split("-")[1]
    for number, path in enumerate(constraints):
        tried = folder / path.stem
        all_packages = try_installed(tried, wheel, version, source, path.resolve(), python)
        if number == 0:
            write_licences(all_packages, built / f"gramian-{version}-licences.txt")
            write_bill(all_packages[0], source, version, built / f"gramian-{version}.cdx.json")
        shutil.rmtree(tried)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(built.iterdir()))
    (built / "SHA256SUMS").write_text(sums)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    shutil.copytree(built, ROOT / "dist")
    print(f"dist/ holds gramian {version}:\n{sums}", end="")


def build_twice(folder: Path) -> tuple[Path, Path]:
    """A copy of the last commit, and sdist and wheel of it, which are the same when made again.

    The first wheel is made from the sdist, as pip does it, the second from the files themselves.
    """
    sources = [copy_of_commit(folder / name) for name in ("first", "second")]
    built = [build(sources[0]), build(sources[1], "--sdist", "--wheel")]
    first, second = ({path.name: digest(path) for path in out.iterdir()} for out in built)
    differing = differences(first, second)
    if differing:
        raise ReleaseError(f"built twice, these differ: {', '.join(differing)}")
    print("built twice, with equal digests:")
    for name, value in sorted(first.items()):
        say(f"{value}  {name}")
    return sources[0], built[0]


def copy_of_commit(folder: Path) -> Path:
    """The files of the last commit, and no others."""
    archive = folder.with_suffix(".tar")
    git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder


def build(source: Path, *kinds: str) -> Path:
    """Build with the pinned tool and the time of the commit; the folder of what was built."""
    out = source.with_name(f"{source.name}-built")
    time = git("log", "-1", "--format=%ct").strip()
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "SOURCE_DATE_EPOCH": time}
    words = [sys.executable, "-m", "build", *kinds, "--outdir", str(out), str(source)]
    done = subprocess.run(words, env={**os.environ, **pins}, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return out


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Names that are in one only, or whose digests differ."""
    names = sorted({*first, *second})
    return [name for name in names if first.get(name) != second.get(name)]


def check_files(built: Sequence[Path], committed: Collection[str]) -> None:
    """The wheel is the package to the last file; the sdist has what it must and nothing large."""
    for path in built:
        if path.stat().st_size > MOST_BYTES:
            raise ReleaseError(f"{path.name} has {path.stat().st_size:,} bytes")
        check = check_wheel if path.suffix == ".whl" else check_sdist
        check(names_in(path), committed)
        say(f"{path.name}: {len(names_in(path))} files, {path.stat().st_size:,} bytes")


def names_in(path: Path) -> list[str]:
    """The files of a wheel, or of an sdist below its one folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return wheel.namelist()
    with tarfile.open(path) as sdist:
        return [member.name.partition("/")[2] for member in sdist if member.isfile()]


def check_wheel(names: Sequence[str], committed: Collection[str]) -> None:
    """All committed files of the package, data and py.typed too, the page of errors, metadata."""
    package = {name.removeprefix("src/") for name in committed if name.startswith(PACKAGE)}
    package |= {BESIDE[name] for name in committed if name in BESIDE}
    found = {name for name in names if ".dist-info/" not in name}
    if found != package:
        raise ReleaseError(
            f"the wheel lacks {package - found} and should not have {found - package}"
        )
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        raise ReleaseError("the wheel has no licence")


def check_sdist(names: Sequence[str], committed: Collection[str]) -> None:
    """The package, what it is built from and tested with, but not the large files."""
    package = {name for name in committed if name.startswith(PACKAGE)}
    lacking = {*package, *IN_SDIST} - set(names)
    strange = [name for name in names if name.startswith(NOT_IN_SDIST)]
    if lacking or strange:
        raise ReleaseError(f"the sdist lacks {lacking} and should not have {strange}")


def try_installed(
    folder: Path, wheel: Path, version: str, source: Path, constraints: Path, python: str
) -> list[Environment]:
    """Try the wheel without extras and with each; the environment with all, and what it is on."""
    plain = Environment.create(folder / "plain", python)
    plain.install(str(wheel), constraints)
    print(f"{constraints.name}, {plain.module('platform').strip()}:")
    say(plain.code(VERSIONS).strip())
    demo = check_plain(plain, version)
    for extra, use in USES.items():
        missing = "" if extra == "docs" else ", and is named where it is missing"
        if missing:  # no command needs docs
            check_missing(plain, extra, demo)
        with_extra = Environment.create(folder / extra, python, below=plain)
        with_extra.install(f"{wheel}[{extra}]", constraints)
        use(with_extra, demo, source)
        say(f"gramian[{extra}]: works{missing}")
    everything = Environment.create(folder / "everything", python, below=plain)
    everything.install(f"{wheel}[{','.join(USES)}]", constraints)
    return [everything, plain]


def write_licences(environments: Sequence[Environment], path: Path) -> None:
    """All licences in a file, if they are allowed."""
    licences = dict(installed_licences(each.packages for each in environments))
    lines, faults = check_licences(licences)
    if faults:
        raise ReleaseError("licences that nobody has looked at: " + "; ".join(faults))
    path.write_text("\n".join(lines) + "\n")
    say(f"licences: {len(lines)} packages, all allowed or with a reason")


def write_bill(installed: Environment, source: Path, version: str, path: Path) -> None:
    """The software bill of materials, as CycloneDX; it is the same when made again."""
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    ours = ["--pyproject", str(source / "pyproject.toml"), "--mc-type", "library"]
    bill = json.loads(run([*tool, *ours, installed.python]))
    bill["metadata"]["component"]["version"] = version  # which pyproject.toml does not say
    path.write_text(json.dumps(bill, indent=2) + "\n")
    say(f"bill of materials: {len(bill['components'])} packages")


def git(*words: str) -> str:
    """What git says."""
    return run(["git", "-C", str(ROOT), *words])


if __name__ == "__main__":
    sys.exit(main())
