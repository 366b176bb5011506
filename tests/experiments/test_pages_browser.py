"""The pages of explain, map and serve in a real browser, used as a person uses them."""

import base64
import io
import json
import re
import threading
import time

import numpy as np
import pytest
import uvicorn
from PIL import Image

from gramian.experiments.cli.main import main
from gramian.experiments.explanations.layer_map import LayerMap, page
from gramian.experiments.serve.server import build_app
from tests.browser import TROUBLE, Browser, needs_browser
from tests.experiments.test_serve import images, rows, saved

__all__ = ["images", "rows", "saved"]  # fixtures
pytestmark = needs_browser


class Running:
    """A server in a thread of its own."""

    def __init__(self, app) -> None:
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.05)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="module")
def url(images):
    running = Running(build_app(images[2], "digits <b>"))
    yield running.url
    running.stop()


def wait_until(browser, expression: str) -> None:
    end = time.monotonic() + 60
    while not browser.evaluate(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.1)


def quiet(browser) -> bool:
    return browser.happened(*TROUBLE) == []


def drop(browser, image) -> None:
    """Drop a file on the page."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    text = base64.b64encode(file.getvalue()).decode()
    browser.evaluate(f"""(() => {{
      const bytes = Uint8Array.from(atob("{text}"), (c) => c.charCodeAt(0));
      const data = new DataTransfer();
      data.items.add(new File([bytes], "mine.png", {{ type: "image/png" }}));
      document.getElementById("status").textContent = "";
      document.getElementById("result").hidden = true;
      document.getElementById("drop").dispatchEvent(
        new DragEvent("drop", {{ dataTransfer: data, bubbles: true, cancelable: true }}));
    }})()""")
    wait_until(browser, "!document.getElementById('result').hidden")


def test_a_dropped_image_is_answered(browser, url, images):
    predictor, test, _ = images
    browser.size(1280)
    browser.open(url)
    assert browser.evaluate("document.querySelector('h1').innerText") == "digits <b>"
    drop(browser, test.x[0, 0].numpy())
    p = predictor.probabilities(test.x[:1])[0]
    best = int(p.argmax())
    first = browser.evaluate("document.getElementById('first').innerText")
    assert first.startswith(f"{predictor.class_names[best]}: {100 * float(p[best]):.1f} %")
    assert browser.evaluate("document.querySelectorAll('#bars .bar').length") == 5
    assert browser.evaluate("document.querySelectorAll('#similar img').length") == 6
    assert browser.evaluate("[...document.images].every(i => !i.src || i.naturalWidth > 0)")
    assert browser.evaluate("document.querySelectorAll('#strange tr').length") == 4
    assert quiet(browser)


def test_a_drawing_is_answered(browser, url):
    browser.open(url)
    x, y, width = browser.evaluate(
        "(() => { const b = document.getElementById('canvas'); b.scrollIntoView();"
        " const r = b.getBoundingClientRect(); return [r.x, r.y, r.width]; })()"
    )
    places = [(0.5, 0.1 + 0.08 * n) for n in range(11)]  # a line: the digit one
    mouse = {"button": "left", "clickCount": 1}
    for number, (a, b) in enumerate(places):
        here = {"x": x + a * width, "y": y + b * width}
        kind = "mousePressed" if number == 0 else "mouseMoved"
        browser.send("Input.dispatchMouseEvent", type=kind, **here, **mouse, buttons=1)
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", **here, **mouse)
    wait_until(browser, "!document.getElementById('result').hidden")
    first = browser.evaluate("document.getElementById('first').innerText")
    assert re.match(r"\d: \d+\.\d %", first)
    ink = "centred(document.getElementById('canvas'), document.getElementById('canvas')"
    ink += ".getContext('2d'))"
    sent = browser.evaluate(f"[{ink}.width, {ink}.height]")
    assert sent == [128, 128]  # what was drawn, cut out and made a square
    browser.click("document.getElementById('clear')")
    assert browser.evaluate(f"{ink}") is None
    assert quiet(browser)


def test_what_the_server_refuses_is_shown(browser, url):
    browser.open(url)
    browser.evaluate("askImage(new Blob(['hello']), 'hello.png')")
    wait_until(browser, "document.getElementById('status').className === 'error'")
    text = browser.evaluate("document.getElementById('status').innerText")
    assert "hello.png" in text
    assert "its format is none of" in text


def test_rows_are_typed(browser, rows):
    predictor, x, answers = rows
    running = Running(build_app(answers, "rows"))
    try:
        browser.open(running.url)
        assert browser.evaluate("document.getElementById('image').hidden")
        browser.evaluate(
            f"document.getElementById('row').value = {json.dumps(', '.join(map(str, x[0])))}"
        )
        browser.click("document.querySelector('#rows button')")
        wait_until(browser, "!document.getElementById('result').hidden")
        shown = float(
            browser.evaluate("document.getElementById('first').innerText").split(" ± ")[0]
        )
        expected = predictor.predictions(x[:1])["mean"].item()
        assert shown == pytest.approx(expected, rel=1e-3)
        browser.evaluate("document.getElementById('row').value = '1, x'")
        browser.click("document.querySelector('#rows button')")
        wait_until(browser, "document.getElementById('status').className === 'error'")
    finally:
        running.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_the_served_page_fits(browser, url, images, width, scheme):
    browser.size(width)
    browser.colours(scheme)
    browser.open(url)
    drop(browser, images[1].x[1, 0].numpy())
    inside = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1] == width


def test_a_point_of_the_map_shows_its_own_image(browser, tmp_path):
    """Images that are not square, in three columns: the fifth is the second of the second row."""
    places = np.array([[-1, -1], [-1, 1], [0, 0], [1, -1], [1, 1]], dtype=float)
    labels = np.zeros(5, dtype=np.int64)
    images = np.zeros((5, 1, 8, 16), dtype=np.uint8)
    text = page([LayerMap("input", places, 1.0, 1.0)], labels, ["a"], "wide", images)
    (tmp_path / "map.html").write_text(text)
    browser.size(1000)
    browser.open((tmp_path / "map.html").as_uri())
    wait_until(browser, "document.querySelectorAll('#layers button').length === 1")
    browser.evaluate("""{
        const box = canvas.getBoundingClientRect();
        const [x, y] = at(data.layers[0].places[4], spread(shown));
        const clientX = box.left + x * box.width / canvas.width;
        const clientY = box.top + y * box.height / canvas.height;
        canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
    }""")
    style = browser.evaluate(
        "(s => [s.width, s.height, s.backgroundPosition])(document.querySelector('.thumb').style)"
    )
    assert style == ["128px", "64px", "-128px -64px"]
    assert quiet(browser)


def test_explanation_and_map(browser, saved, tmp_path, capsys):
    """Both pages open without a complaint, and everything on them is there."""
    words = [str(saved), "--data", "digits", "--output", str(tmp_path)]
    assert main(["explain", *words, "--test", "0", "1", "--among", "60"]) == 0
    assert main(["map", *words, "--points", "80"]) == 0
    capsys.readouterr()
    browser.size(1000)
    browser.open((tmp_path / "explanation.html").as_uri())
    sizes = np.array(browser.evaluate("[...document.images].map(i => i.naturalWidth)"))
    assert len(sizes) > 20
    assert sizes.min() > 0
    assert quiet(browser)
    browser.open((tmp_path / "map.html").as_uri())
    layers = browser.evaluate("document.querySelectorAll('#layers button').length")
    assert layers >= 3
    browser.evaluate("window.before = document.getElementById('map').toDataURL()")
    browser.click(f"document.querySelectorAll('#layers button')[{layers - 1}]")
    wait_until(browser, "document.getElementById('map').toDataURL() !== window.before")
    browser.click("document.querySelector('#legend button')")
    state = "document.querySelector('#legend button').getAttribute('aria-pressed')"
    assert browser.evaluate(state) == "false"
    assert quiet(browser)
