"""Opens a page in a real browser without a screen, works it by a script, and returns what that saw.

Chromium alone: the page is copied with a script behind its own, whose result is read from the DOM
that `--dump-dom` prints; what the page logs comes on the standard error.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PROBE = """
<pre id="probe"></pre><script>
(async () => {
  const probe = document.getElementById("probe");
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const $ = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const press = (node, key) =>
    node.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  try {
    while (!document.documentElement.dataset.ready) await wait(20);
    const found = await (async () => { %s })();
    probe.textContent = JSON.stringify({ found });
  } catch (fault) { probe.textContent = JSON.stringify({ fault: String(fault.stack || fault) }); }
  if (window.parent !== window) window.parent.postMessage(probe.textContent, "*");
})();
</script>
"""
_FRAME = """<!doctype html><body style="margin: 0"><pre id="probe"></pre>
<iframe src="%s" style="border: 0; width: %dpx; height: 900px"></iframe><script>
const probe = document.getElementById("probe");
window.addEventListener("message", (event) => { probe.textContent = event.data; });
</script>
"""
_MIN_WIDTH = 500
"""Of a window of chromium without a screen; a narrower page stands in a frame."""


@dataclass(frozen=True)
class Seen:
    """What a browser saw."""

    found: Any
    """What the script returned."""
    console: tuple[str, ...]
    """Everything that the page logged, errors among it."""


def browser() -> str:
    """Return the path of a browser; skips the test if there is none."""
    for name in _BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("no chromium here; on Debian: apt-get install chromium")


def see(page: Path, script: str, *options: str, address: str = "", width: int = 1280) -> Seen:
    """Open a page and run the body of an async function when it is drawn.

    Parameters
    ----------
    script
        JavaScript; `$` and `all` find elements, `press(node, key)` presses a key, `wait(ms)` waits.
        It returns what JSON can hold.
    options
        More options of the browser, such as "--blink-settings=preferredColorScheme=0".
    address
        What follows the file in the address, such as "#op=conv".
    width
        Of the page, in pixels of CSS.
    """
    copy = page.with_name(f"{page.stem}.probe.html")
    copy.write_text(page.read_text() + _PROBE % script)
    shown = f"{copy.as_uri()}{address}"
    if width < _MIN_WIDTH:
        frame = page.with_name(f"{page.stem}.frame.html")
        frame.write_text(_FRAME % (shown, width))
        shown = frame.as_uri()
    command = [
        browser(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={page.parent / 'profile'}",
        "--hide-scrollbars",
        f"--window-size={width},900",
        "--enable-logging=stderr",
        "--timeout=60000",
        "--virtual-time-budget=60000",
        *options,
        "--dump-dom",
        shown,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    probe = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert probe is not None, f"{done.returncode}: {done.stdout[-500:]}\n{done.stderr[-2000:]}"
    assert probe[1], f"the script did not end\n{done.stderr[-2000:]}"
    value = json.loads(html.unescape(probe[1]))
    assert "fault" not in value, value["fault"]
    console = tuple(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return Seen(value.get("found"), console)
