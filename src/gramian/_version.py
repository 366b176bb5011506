"""The version, where nothing else is imported.

Example:
    >>> from gramian import __version__
    >>> tuple(map(int, __version__.split(".")[:2])) >= (0, 1)  # major and minor
    True
"""

__version__ = "0.2.0.dev0"
