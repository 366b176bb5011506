"""The report's page in a real browser."""

import pytest

from paper.report.write import write_report
from tests.browser import TROUBLE, Browser, needs_browser
from tests.paper.test_report import EVIL, ROWS, make_runs

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """The browser, with the page of a report open."""
    folder = tmp_path_factory.mktemp("page")
    make_runs(folder / "runs")
    for path in folder.rglob("metrics.jsonl"):
        if path.parts[-3] != "zero_nu":  # one figure is enough, and quick
            path.unlink()
    write_report(folder / "runs", folder / "report")
    started = Browser(folder / "profile")
    try:
        started.size(1280)
        started.open((folder / "report" / "report.html").as_uri())
        yield started
    finally:
        started.close()


def table(number: int) -> str:
    return f"document.querySelectorAll('table')[{number}]"


def column(browser: Browser, number: int, place: int) -> list[str]:
    cells = f"[...{table(number)}.tBodies[0].rows].map(row => row.cells[{place}].innerText)"
    return browser.evaluate(cells)


def states(browser: Browser, number: int) -> list[str]:
    heads = f"[...{table(number)}.tHead.rows[0].cells].map(head => head.ariaSort)"
    return browser.evaluate(heads)


def contrast(first: str, second: str) -> float:
    """Contrast of two colours as WCAG defines it; 4.5 is its demand on text."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


def test_the_page_shows_everything(browser):
    assert browser.evaluate("document.querySelectorAll('section h2').length") == 5
    assert browser.evaluate("document.querySelectorAll('table').length") == 4
    labels = column(browser, 1, 0)  # the tables are in the order of their folders
    assert [label.split("\n")[0] for label in labels] == [label for label, *_ in ROWS.values()]
    assert EVIL in labels[-1]
    sizes = browser.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(sizes) == 2  # learning curves, condition numbers
    assert min(sizes) > 500


def test_a_click_sorts_by_number_and_the_third_restores(browser):
    before = column(browser, 1, 3)
    heading = f"{table(1)}.tHead.rows[0].cells[3].querySelector('button')"
    browser.click(heading)
    finished = ["−1.5900", "−1.4000", "−1.2350", "−1.2000", "−1.1000"]
    assert [text[:7] for text in column(browser, 1, 3)] == [*finished, "Fail", "unfinis"]
    assert states(browser, 1)[3] == "ascending"
    assert states(browser, 1).count("none") == 9
    browser.click(heading)
    assert [text[:7] for text in column(browser, 1, 3)] == [*finished[::-1], "Fail", "unfinis"]
    assert states(browser, 1)[3] == "descending"
    browser.click(heading)
    assert column(browser, 1, 3) == before
    assert set(states(browser, 1)) == {"none"}


def test_another_column_takes_over_and_labels_sort_as_text(browser):
    browser.click(f"{table(0)}.tHead.rows[0].cells[1].querySelector('button')")
    browser.click(f"{table(0)}.tHead.rows[0].cells[0].querySelector('button')")
    labels = [label.casefold() for label in column(browser, 0, 0)]
    assert labels == sorted(labels)
    assert states(browser, 0)[:2] == ["ascending", "none"]
    assert set(states(browser, 1)) == {"none"}  # the other table is left alone


def test_keys_sort_too(browser):
    browser.evaluate(f"{table(3)}.tHead.rows[0].cells[1].querySelector('button').focus()")
    browser.press_enter()
    assert states(browser, 3)[1] == "ascending"
    counts = [text.split("/")[0] for text in column(browser, 3, 1)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_is_never_wider_than_the_window(browser, width):
    browser.size(width)
    inside = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1] == width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser, scheme):
    browser.colours(scheme)
    style = "getComputedStyle(document.querySelector('{}')).{}"
    back = browser.evaluate(style.format("body", "backgroundColor"))
    assert (contrast(back, "rgb(0, 0, 0)") < 3) == (scheme == "dark")
    for element, ground in (("body", "body"), (".muted", "body"), ("a", "body"), ("td", ".scroll")):
        text = browser.evaluate(style.format(element, "color"))
        behind = browser.evaluate(style.format(ground, "backgroundColor"))
        assert contrast(text, behind) >= 4.5, element


def test_nothing_is_loaded_and_nothing_complains(browser):
    browser.open(browser.evaluate("location.href"))
    browser.click(f"{table(0)}.tHead.rows[0].cells[1].querySelector('button')")
    requests = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert requests
    others = {url[:40] for url in requests if not url.startswith("data:")}
    assert len(others) == 1
    assert others.pop().startswith("file:///")
    assert browser.happened(*TROUBLE) == []
