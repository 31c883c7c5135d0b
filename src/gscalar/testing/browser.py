"""A real Chromium for tests and pictures: a few calls of the W3C WebDriver protocol to chromedriver, and no package.

Chromium and chromedriver are Debian's package chromium-driver. The page is opened from its file, as a user would;
nothing is loaded from anywhere else. Only what the tests need is here: opening, scripts, keys, the pointer, the console
and pictures.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

_START_S: Final = 60.0
_CALL_S: Final = 60.0
_LOCAL: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One window of a running Chromium."""

    def __init__(self, base: str) -> None:
        self._base = base

    def open(self, path: Path) -> None:
        """Open a page from its file."""
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def resize(self, width: int, height: int) -> None:
        """Give the page so many pixels."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """Let the user prefer `light` or `dark`."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script's body returns; it sees its arguments as `arguments`."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other. Keys without a sign are WebDriver's code points."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer to a place of the window, and click there."""
        actions: list[dict[str, object]] = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
        if click:
            actions += [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")]
        self._call("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def turn(self, x: float, y: float, by: int) -> None:
        """Turn the wheel at a place of the window; below 0 is away from the user."""
        turned = {"type": "scroll", "duration": 0, "x": round(x), "y": round(y), "deltaX": 0, "deltaY": by}
        self._call("POST", "/actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [turned]}]})

    def console(self) -> list[str]:
        """Return what the page has said on its console since the last call, errors of its policy too."""
        return [str(each["message"]) for each in self._call("POST", "/se/log", {"type": "browser"})]

    def picture(self, *, whole: bool = False) -> bytes:
        """Return the window as PNG, or the whole page."""
        told = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole, fromSurface=True)
        return base64.b64decode(told["data"])

    def devtools(self, command: str, **parameters: object) -> Any:
        """Return what Chromium answers to a command of its own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, method: str, path: str, body: object) -> Any:
        return _ask(method, self._base + path, body)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium without a window and give it; it ends with the block.

    Raises `FileNotFoundError` where chromedriver or Chromium is not installed.
    """
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        raise FileNotFoundError("chromedriver and chromium: apt-get install --no-install-recommends chromium-driver")
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        log = Path(folder) / "driver.log"
        with log.open("wb") as file:
            process = subprocess.Popen([driver, "--port=0"], stdout=file, stderr=subprocess.STDOUT)
        try:
            base = f"http://127.0.0.1:{_port(log, process)}"
            session = _ask("POST", f"{base}/session", {"capabilities": {"alwaysMatch": _wanted(chromium, folder)}})
            here = f"{base}/session/{session['sessionId']}"
            try:
                yield Browser(here)
            finally:
                _ask("DELETE", here, None)
        finally:
            process.terminate()
            process.wait()


def _wanted(chromium: str, folder: str) -> dict[str, object]:
    flags: Sequence[str] = ("--headless=new", "--hide-scrollbars", f"--user-data-dir={folder}/profile", "--disable-gpu")
    if os.geteuid() == 0:
        flags = (*flags, "--no-sandbox")  # Chromium refuses to start as root with it
    return {
        "browserName": "chrome",
        "goog:chromeOptions": {"binary": chromium, "args": [*flags, "--disable-dev-shm-usage"]},
        "goog:loggingPrefs": {"browser": "ALL"},
    }


def _port(log: Path, process: subprocess.Popen[bytes]) -> int:
    """Return the port that chromedriver says it has chosen."""
    until_s = time.monotonic() + _START_S
    while time.monotonic() < until_s and process.poll() is None:
        told = log.read_text(errors="replace").partition("started successfully on port ")[2]
        if "." in told:
            return int(told.partition(".")[0])
        time.sleep(0.05)
    raise RuntimeError(f"chromedriver did not start: {log.read_text(errors='replace')}")


def _ask(method: str, url: str, body: object) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
    try:
        with _LOCAL.open(request, timeout=_CALL_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise RuntimeError(f"{method} {url}: {error.read().decode(errors='replace')}") from error
