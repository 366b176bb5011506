"""Errors that end with the address of their answer: a section of docs/ERRORS.md.

``gramian help SECTION`` prints it, also where there is no network and no documentation. Nothing is
imported here, so that the command line can say what is wrong before it loads anything.
"""

from __future__ import annotations

PAGE = "docs/ERRORS.md"


class Explained(BaseException):
    """An error with a section of its own; tracebacks and the program end with its address.

    The first base of each error class of the package. A subclass from outside has the section of
    the class that it extends.
    """

    section = ""

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("gramian.") and not cls.__name__.startswith("_"):
            cls.section = cls.__name__

    def __init__(self, *values: object) -> None:
        super().__init__(*values)
        self.add_note(address(self.section))


class MissingExtraError(Explained, ImportError):
    """Something needs packages that only an extra of gramian installs."""

    exit_code = 1

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} needs more packages: pip install 'gramian[{self.extra}]'"


def anchor(section: str) -> str:
    """Where a section is: file and anchor."""
    return f"{PAGE}#{section.lower()}"


def address(section: str) -> str:
    """Where a section is, and how to read it here."""
    return f"{anchor(section)} (gramian help {section.lower()})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was refused, by Python, by NumPy or by PyTorch."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def section_of(error: BaseException) -> str:
    """The section of any error that reaches the command line."""
    if isinstance(error, Explained):
        return error.section
    known = (OSError, MemoryError, KeyboardInterrupt)
    return next((kind.__name__ for kind in known if isinstance(error, kind)), "Unexpected")
