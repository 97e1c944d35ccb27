"""The built site in Chromium: no error, nothing wider than a phone, search without a server, a page to play with."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGES = ["index", "play", "theory", "evidence", "zoo", "notebooks/quickstart", "reference/spectral"]
LISTEN = """<script>window.errors = [];
addEventListener("error", (e) => errors.push(String(e.message || e.target.src || e.target.href)), true);
addEventListener("unhandledrejection", (e) => errors.push(String(e.reason)));</script>"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="pip install 'koopsim[docs]'"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "site"
    subprocess.run([sys.executable, str(ROOT / "tools" / "site.py"), "--out", str(out)], check=True)
    return out


def opened(site: Path, name: str, script: str, *options: str, query: str = ""):
    """What `script`, the body of an async function, returns inside the opened page; the page's own errors are none."""
    page = site / f"{name}.html"
    text = page.read_text().replace("<head>", f"<head>{LISTEN}", 1)
    probe = f"""<script>addEventListener("load", () => setTimeout(async () => {{
      const found = await (async () => {{ {script} }})();
      const note = document.createElement("pre"); note.id = "probe";
      note.textContent = JSON.stringify({{ found, errors }}); document.body.append(note); }}, 300));</script></body>"""
    copy = page.with_name(f"probe-{page.name}")
    copy.write_text(probe.join(text.rsplit("</body>", 1)))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    with tempfile.TemporaryDirectory() as profile:  # a new one: the theme remembers the last scheme
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=9000", *options, "--dump-dom"]
        command.append(copy.as_uri() + query)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    copy.unlink()
    note = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert note, done.stdout[-1000:]
    answer = json.loads(re.sub(r"&(lt|gt|amp);", lambda m: {"lt": "<", "gt": ">", "amp": "&"}[m[1]], note[1]))
    assert answer["errors"] == []
    return answer["found"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window(site, name, width, dark):
    options = [f"--window-size={width},900", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    said = "return [document.documentElement.scrollWidth, innerWidth, document.body.dataset.mdColorScheme]"
    wide, window, scheme = opened(site, name, said, *options)
    assert wide <= window
    assert scheme == ("slate" if dark else "default")


def test_search_finds_without_a_server(site):
    """The theme's own way in: ?q= on the address."""
    script = """
      const meta = document.querySelector(".md-search-result__meta");
      for (let i = 0; i < 50 && !/matching/.test(meta.textContent); i++) await new Promise((go) => setTimeout(go, 100));
      return meta.textContent"""
    assert re.match(r"\d+ matching documents", opened(site, "index", script, query="?q=jordan").strip())


def test_the_page_can_be_played_with(site):
    script = """
      const verdict = () => document.querySelector(".play-verdict").textContent, said = [];
      const buttons = document.querySelectorAll(".play-bar:first-child button");
      for (const button of buttons) { button.click(); said.push(verdict()); }
      const plane = document.querySelector("#play canvas"), press = (key) =>
        plane.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
      buttons[0].click();
      press("j"); said.push(verdict()); press("j"); said.push(verdict());
      for (let i = 0; i < 3; i++) press("ArrowRight"); said.push(verdict());
      return said.map((text) => text.match(/\\((.*)\\)/)[1])"""
    found = opened(site, "play", script)
    assert found[:6] == ["fixed-point", "origin", "invariant-set", "invariant-set", "divergent", "divergent"]
    assert found[6:] == ["divergent", "fixed-point", "divergent"]
