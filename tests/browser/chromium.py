"""A headless Chromium, spoken to over two pipes: pages as people see them, in light, dark and on paper.

Reference: Chrome DevTools Protocol, --remote-debugging-pipe (messages of JSON, each ended by a zero byte).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
WHERE = "needs chromium or google-chrome (MPICOMP_APT=1 python tests/debian.py chromium installs it)"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
          "--remote-debugging-pipe")  # fmt: skip


def binary() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser of its own; every message that it sends is kept in ``events``."""

    def __init__(self, profile: Path, patience_s: float = 60.0) -> None:
        self.events: list[dict] = []
        self._patience_s, self._last, self._rest = patience_s, 0, b""
        to_it, self._write = os.pipe()
        self._read, from_it = os.pipe()
        # The shell puts the pipes where the browser looks for them: 3 to read from, 4 to write to.
        command = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{from_it}', "bash", str(binary()), *_FLAGS,
                   f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            command, pass_fds=(to_it, from_it), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_it)
        os.close(from_it)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict:
        """One command of the protocol; its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def _next(self, waiting_for: str) -> dict:
        deadline = time.monotonic() + self._patience_s
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser does not answer {waiting_for}"
            part = os.read(self._read, 1 << 20)
            assert part, f"the browser ended during {waiting_for}"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        seen = len(self.events)
        assert "errorText" not in self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[seen:]):
            self.events.append(self._next("Page.navigate"))

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def prefer(self, scheme: str, media: str = "") -> None:
        """Set the reader's preference, light or dark, and the medium, screen or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def paper(self, path: Path) -> Path:
        """The page as PDF, A4."""
        sheet = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(sheet["data"]))
        return path

    def complaints(self) -> list[dict]:
        """Console messages, and requests that the page's policy blocked."""
        return [event for event in self.events
                if event.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]

    def requested(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]  # fmt: skip
