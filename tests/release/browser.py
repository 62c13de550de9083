"""A real Chromium, driven over its own protocol on two pipes: no driver package, no port.

Named by the environment variable QWARM_BROWSER, or found as chromium, google-chrome or chrome-headless-shell on PATH.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless", "--no-sandbox", "--single-process", "--no-zygote", "--in-process-gpu", "--ignore-gpu-blocklist", "--use-gl=angle",
    "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--font-render-hinting=none", "--disable-background-networking", "--disable-features=AudioServiceOutOfProcess,IsolateOrigins,site-per-process",
)  # fmt: skip


def found() -> str | None:
    """The browser's path, or None."""
    return os.environ.get("QWARM_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `events` are those that came while waiting for answers."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.buffer, self.number, self.events, self.session = send, receive, b"", 0, list[dict[str, Any]](), ""

    def call(self, method: str, seconds: float = 120.0, **parameters: Any) -> dict[str, Any]:
        """The answer to one command; raises AssertionError for an error or none in time."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            answer = self._next(until)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)
        raise AssertionError(f"{method}: no answer in {seconds:g} s")

    def _next(self, until: float) -> dict[str, Any]:
        import select

        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.receive], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser is silent"
            self.buffer += os.read(self.receive, 1 << 20)
        line, _, self.buffer = self.buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path: Path, most: int = 8000) -> None:
        """The page as PNG, its first `most` pixels: beyond 8192 a browser's own textures end."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def opened(browser: str, url: str, profile: Path, width: int = 1100, height: int = 900) -> Iterator[Page]:
    """A tab that has loaded `url`, with requests and console messages in `events`."""
    to_browser, from_browser = os.pipe(), os.pipe()

    def descriptors() -> None:
        os.dup2(to_browser[0], 3)
        os.dup2(from_browser[1], 4)

    command = [browser, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank"]
    with subprocess.Popen(
        command, preexec_fn=descriptors, pass_fds=(3, 4, to_browser[0], from_browser[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        page = Page(to_browser[1], from_browser[0])
        try:
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                page.call(f"{domain}.enable")
            page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            page.call("Page.navigate", url=url)
            while page.evaluate("document.readyState") != "complete":
                time.sleep(0.1)
            yield page
        finally:
            process.kill()
            for descriptor in (*to_browser, *from_browser):
                os.close(descriptor)


if __name__ == "__main__":  # python tests/release/browser.py build/report/report.html docs/report.png
    import sys
    import tempfile

    path = found()
    assert path, "no browser: set QWARM_BROWSER"
    with tempfile.TemporaryDirectory() as folder, opened(path, Path(sys.argv[1]).resolve().as_uri(), Path(folder)) as tab:
        tab.screenshot(Path(sys.argv[2]), most=2400)
