"""A real browser for tests: Debian's chromium, by its own protocol over a pipe."""

import json
import os
import select
import shutil
import subprocess
import time

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, NAMES) if path), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
)
OPTIONS = [
    "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--no-first-run", "--hide-scrollbars",
]  # fmt: skip
PATIENCE = 120  # seconds; the machine may be busy
TROUBLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
MIDDLE = """(() => {
  const element = %s;
  element.scrollIntoView({ block: "center", inline: "center" });
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


class Browser:
    """One page of a chromium without windows.

    The DevTools protocol: JSON messages that end with a zero byte, to the program's file 3 and
    from its file 4, which the shell makes of standard input and output.
    """

    def __init__(self, profile) -> None:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [CHROMIUM, *OPTIONS, *sandbox, f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.received, self.number, self.session = b"", 0, None
        self.events: list[dict] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        answer = self.wait_for(lambda message: message.get("id") == self.number)
        assert "error" not in answer, answer
        return answer["result"]

    def wait_for(self, is_wanted):
        """The next message that is wanted; the others are kept if they are events."""
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self.received:
                text, _, self.received = self.received.partition(b"\0")
                message = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                if is_wanted(message):
                    return message
            ready, _, _ = select.select([self.process.stdout], [], [], end - time.monotonic())
            assert ready, f"no answer of the browser in {PATIENCE} s"
            some = os.read(self.process.stdout.fileno(), 1 << 16)
            assert some, "the browser has ended"
            self.received += some

    def open(self, url: str) -> None:
        self.events.clear()
        self.send("Page.navigate", url=url)
        if not self.happened("Page.loadEventFired"):
            self.wait_for(lambda message: message.get("method") == "Page.loadEventFired")

    def happened(self, *methods: str) -> list[dict]:
        return [event["params"] for event in self.events if event["method"] in methods]

    def evaluate(self, expression: str):
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width: int, height: int = 900) -> None:
        options = {"deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, **options)

    def colours(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def click(self, element: str) -> None:
        """Click on the middle of an element, as a person does."""
        x, y = self.evaluate(MIDDLE % element)
        for kind in ("mousePressed", "mouseReleased"):
            options = {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **options)

    def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            options = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
            self.send("Input.dispatchKeyEvent", type=kind, **options)

    def close(self) -> None:
        self.session = None
        try:
            self.send("Browser.close")
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
