"""The licences of everything that comes with the package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path

# SPDX identifiers, all permissive but MPL-2.0, whose duties concern only changes of its own files;
# and BSD, for the many that do not say which of them.
ALLOWED = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause",
    "BSL-1.0", "CC0-1.0", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0",
    "Python-2.0", "Unlicense", "Zlib",
}  # fmt: skip
# What packages say instead, in lower case; classifiers by their last part.
OTHER_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Packages, by pattern, whose licence is another or is not said in a way that a program can read.
EXCEPTIONS = {
    "docutils": "public domain and BSD; the GPL is that of an Emacs mode, which wheels lack",
    "nvidia-*": "NVIDIA's own terms; PyTorch's builds for CUDA ask for it, we do not",
    "cuda-*": "NVIDIA's own terms; PyTorch's builds for CUDA ask for it, we do not",
}


def licence_of(metadata: PackageMetadata) -> str:
    """What a package says, as an SPDX expression where that is known; empty if it says nothing.

    The expression counts first, then the classifiers, then the field ``License``, which in old
    packages may hold the whole text.
    """
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    named = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    (field, *_) = metadata.get_all("License") or [""]
    field = field.strip()
    if not named and field and "\n" not in field:
        named = [field]
    return " AND ".join(OTHER_NAMES.get(name.lower(), name) for name in sorted(set(named)))


def is_allowed(expression: str) -> bool:
    """Whether each licence that an SPDX expression names is allowed; of A OR B, too, both."""
    names = [name.strip("() ") for name in re.split(r"\s+(?:AND|OR|and|or)\s+", expression)]
    return all(name in ALLOWED for name in names)


def reason_for(package: str) -> str | None:
    """Why a package may come with ours whatever its licence is, if it may."""
    return next(
        (why for pattern, why in EXCEPTIONS.items() if fnmatch(package.lower(), pattern)), None
    )


def check_licences(licences: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """A line for each package, and the faults among them, by name."""
    lines, faults = [], []
    for package, licence in sorted(licences.items(), key=lambda item: item[0].lower()):
        reason = reason_for(package)
        lines.append(f"{package:<32} {licence or '-'}{f'   ({reason})' if reason else ''}")
        if not is_allowed(licence) and reason is None:
            faults.append(f"{package}: {licence or 'no licence is named'}")
    return lines, faults


def installed_licences(folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Name and licence of each package that is installed in the folders."""
    for each in distributions(path=[str(folder) for folder in folders]):
        yield each.metadata["Name"], licence_of(each.metadata)
