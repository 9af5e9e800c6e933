"""A real browser for tests: Chromium, driven by its DevTools protocol over a pipe.

`--remote-debugging-pipe` needs no driver and no package: messages are JSON that end with a zero
byte, from file descriptor 3 and to file descriptor 4.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Gives the pipes the numbers that the protocol wants, by way of numbers that are neither of them.
LAUNCH = (
    "import fcntl, os, sys;"
    "high = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]];"
    "[os.dup2(n, to) for n, to in zip(high, (3, 4))];"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
# Until a step counts as failed. It bounds a hang and says nothing about speed.
SECONDS = 120
KEYS = {
    "Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    "Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
    "Escape": {"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27},
}


def find():
    """Return the path of a browser, or None. `dev.py test` looks for the same names."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page of a browser: what it shows, what was typed, and what it asked for."""

    def __init__(self, browser):
        self._browser = browser
        target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        self.events = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, parameters=None):
        return self._browser.call(method, parameters or {}, self)

    @property
    def session(self):
        return self._session

    @property
    def requests(self):
        """The addresses that the page asked for."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    @property
    def errors(self):
        """Uncaught exceptions, and errors in the console, such as violations of the policy."""
        thrown = [e for e in self.events if e["method"] == "Runtime.exceptionThrown"]
        logged = [
            event
            for event in self.events
            if event["method"] == "Log.entryAdded"
            and event["params"]["entry"]["level"] in ("error", "warning")
        ]
        return [json.dumps(event["params"])[:500] for event in thrown + logged]

    def open(self, path, width=1280, height=900, *, dark=False):
        """Open a local file in a window of some size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.call("Page.navigate", {"url": f"file://{os.path.abspath(path)}"})
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression):
        """Return the value of a JavaScript expression."""
        done = self.call(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True},
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)

    def press(self, key):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, **KEYS[key]})

    def type(self, text):
        """Type a text into the focused element."""
        self.call("Input.insertText", {"text": text})

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1},
            )

    def screenshot(self, path):
        """Save a picture of the whole page."""
        shot = self.call("Page.captureScreenshot", {"captureBeyondViewport": True})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def print_pdf(self):
        """Return the page as it is printed."""
        done = self.call("Page.printToPDF", {"printBackground": True})
        return base64.b64decode(done["data"])


class Browser:
    """A running browser with a profile of its own."""

    def __init__(self, program):
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *FLAGS, *sandbox, f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(read), str(write), *command],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._profile.name},
        )
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._pages = []

    def page(self):
        """Open a new page."""
        page = Page(self)
        self._pages.append(page)
        return page

    def call(self, method, parameters, page=None):
        """Call a method of the protocol and return its result; keep events for their pages."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if page is not None:
            message["sessionId"] = page.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            for each in [*self._pages, *([page] if page is not None else [])]:
                if answer.get("sessionId") == each.session and answer not in each.events:
                    each.events.append(answer)

    def _receive(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self):
        """End the browser and remove its profile."""
        with contextlib.suppress(Exception):
            self.call("Browser.close", {})
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()
