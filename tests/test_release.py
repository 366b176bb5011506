"""What `make release` decides by itself, and files that must say the same."""

import re
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gramian import __version__
from tools import release
from tools.environments import Environment, ReleaseError
from tools.installed import USES, check_missing
from tools.licences import check_licences, installed_licences, is_allowed, licence_of

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = {"test", "dev", "release"}  # extras for those who work on the package
EXTRAS = {
    name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in TOOLS
}
NEEDED = [
    requirement
    for lines in (PROJECT["dependencies"], *EXTRAS.values())
    for requirement in map(Requirement, lines)
    if requirement.name != "gramian"
]


def pins(name):
    lines = (ROOT / name).read_text().split()
    return {canonicalize_name(line.split("==")[0]): Version(line.split("==")[1]) for line in lines}


# ---- files that must say the same ----


@pytest.mark.parametrize("needed", NEEDED, ids=str)
def test_the_oldest_versions_are_the_lower_bounds_and_the_newest_are_allowed(needed):
    (lowest,) = [Version(each.version) for each in needed.specifier if each.operator == ">="]
    name = canonicalize_name(needed.name)
    assert pins("constraints-oldest.txt")[name] == lowest
    assert pins("constraints.txt")[name] in needed.specifier


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert citation["version"] == __version__
    assert newest == ("Unreleased" if ".dev" in __version__ else __version__)


def test_each_extra_is_tried():
    assert set(USES) == set(EXTRAS) - {"slurm"}  # of paper/, which is not in the wheel


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_run_targets_of_the_makefile(name):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    path = ROOT / ".github" / "workflows" / name
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    lines = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    made = [line.split()[1] for line in lines if line.startswith("make ")]
    assert made
    assert set(made) <= set(targets)


# ---- what is built ----


def test_files_that_differ_or_are_missing_are_named():
    first = {"a.whl": "1", "a.tar.gz": "2", "b": "3"}
    assert release.differences(first, dict(first)) == []
    assert release.differences(first, {"a.whl": "1", "a.tar.gz": "9", "c": "4"}) == [
        "a.tar.gz",
        "b",
        "c",
    ]


COMMITTED = ["src/gramian/__init__.py", "src/gramian/py.typed", "src/gramian/train/presets/x.yaml"]
WHEEL = [name.removeprefix("src/") for name in COMMITTED] + ["g-1.dist-info/licenses/LICENSE"]


def test_a_wheel_is_the_package_to_the_last_file():
    release.check_wheel(WHEEL, [*COMMITTED, "README.md"])
    for number, name in enumerate(WHEEL):
        with pytest.raises(ReleaseError, match="licence" if "LICENSE" in name else name):
            release.check_wheel(WHEEL[:number] + WHEEL[number + 1 :], COMMITTED)
    with pytest.raises(ReleaseError, match="secret"):
        release.check_wheel([*WHEEL, "gramian/secret.txt"], COMMITTED)


def test_an_sdist_has_the_package_and_no_fixtures():
    names = [*COMMITTED, *release.IN_SDIST]
    release.check_sdist(names, COMMITTED)
    with pytest.raises(ReleaseError, match=r"x\.yaml"):
        release.check_sdist([name for name in names if "yaml" not in name], COMMITTED)
    with pytest.raises(ReleaseError, match=r"large\.npz"):
        release.check_sdist([*names, "tests/fixtures/large.npz"], COMMITTED)


def test_only_what_is_committed_is_released(monkeypatch, capsys):
    monkeypatch.setattr(release, "git", lambda *words: " M README.md\n")
    assert release.main([]) == 1
    assert "there are changes" in capsys.readouterr().err


def test_an_extra_that_is_not_named_where_it_is_missing_is_a_fault(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    (tmp_path / "work").mkdir()
    for text, fault in (("pip install gramian[serve]", False), ("No module named x", True)):
        python.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
        python.chmod(0o755)
        if fault:
            with pytest.raises(ReleaseError, match="No module named x"):
                check_missing(Environment(tmp_path), "serve", tmp_path)
        else:
            check_missing(Environment(tmp_path), "serve", tmp_path)


# ---- licences ----


def package(folder, name, *lines):
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("\n".join([f"Name: {name}", "Version: 1", *lines, "", "MIT"]))
    return PathDistribution(info).metadata


@pytest.mark.parametrize(
    ("lines", "licence", "allowed"),
    [
        (["License-Expression: MIT"], "MIT", True),
        (["License-Expression: (MIT OR Apache-2.0) AND 0BSD"], None, True),
        (["License-Expression: MIT AND GPL-3.0-only"], None, False),
        (["License: BSD", "Classifier: License :: OSI Approved :: MIT License"], "MIT", True),
        (["Classifier: License :: OSI Approved", "License: Apache 2.0"], "Apache-2.0", True),
        (
            [
                "Classifier: License :: OSI Approved :: MIT License",
                "Classifier: License :: OSI Approved :: GNU General Public License (GPL)",
            ],
            "GNU General Public License (GPL) AND MIT",
            False,
        ),
        (["License: Copyright of a firm", "        All rights reserved"], "", False),
        ([], "", False),
    ],
)
def test_licences_are_read_and_judged(tmp_path, lines, licence, allowed):
    found = licence_of(package(tmp_path, "a", *lines))
    assert licence is None or found == licence
    assert is_allowed(found) == allowed


def test_an_unknown_licence_is_a_fault_by_name_unless_there_is_a_reason(tmp_path):
    package(tmp_path, "good", "License-Expression: BSD-3-Clause")
    package(tmp_path, "closed", "License: Proprietary")
    package(tmp_path, "silent")
    package(tmp_path, "nvidia-cublas", "License: NVIDIA Proprietary Software")
    lines, faults = check_licences(dict(installed_licences([tmp_path])))
    assert faults == ["closed: Proprietary", "silent: no licence is named"]
    assert [line.split()[0] for line in lines] == ["closed", "good", "nvidia-cublas", "silent"]
    assert "NVIDIA's own terms" in lines[2]
