"""The reference: every public name has an example that runs, and its place on one page."""

import doctest
import importlib
import inspect
import io

import pytest

import gramian
from gramian import metrics

METRICS = [
    name
    for name, value in vars(metrics).items()
    if getattr(value, "__module__", None) == metrics.__name__ and not name.startswith("_")
]


def documented(name: str) -> object:
    """What has the docstring of a public name: of a constant, the module that it comes from."""
    value = getattr(gramian, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return value
    return importlib.import_module(f"gramian.{gramian._HOME.get(name, '_version')}")


def run_example(name: str, has_it: object) -> None:
    """Run the examples of a docstring with nothing but what they import."""
    (test,) = doctest.DocTestFinder(recurse=False).find(has_it, name, module=False, globs={})
    assert any(name in part.source + part.want for part in test.examples), f"no example of {name}"
    said = io.StringIO()
    assert doctest.DocTestRunner().run(test, out=said.write).failed == 0, said.getvalue()


@pytest.mark.parametrize("name", gramian.__all__)
def test_every_public_name_has_an_example_that_runs(name):
    run_example(name, documented(name))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_an_example_that_runs(name):
    run_example(name, getattr(metrics, name))
