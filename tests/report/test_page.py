"""The page in a browser: it opens without a network and without errors, is complete, and answers."""

import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import made, made_search
from PIL import Image

from koopsim.cli import main

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RECORDED = Path(__file__).parent.parent.parent / "results" / "h200"
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

LISTEN = """<script>window.errors = [];
addEventListener("error", (e) => errors.push(String(e.message || e.target.src || e.target.href)), true);
addEventListener("unhandledrejection", (e) => errors.push(String(e.reason)));
const said = console.error; console.error = (...a) => { errors.push(a.join(" ")); said(...a); };</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs with something of everything in them: a search, pictures, a broken run, a name that is HTML."""
    place = tmp_path_factory.mktemp("everything")
    pictures = place / "set16"
    pictures.mkdir()
    (place / "images").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(pictures / "one.png")
    results = [made(seed=s) for s in range(2)] + [made("copy/deq", seconds=600.0), made("cifar10/sim-two")]
    strange = made("cifar10/sim-single")
    strange["run"]["task"]["dataset"] = "<img src=x onerror=nothing()>&amp;"
    search = made_search(0.3, 0.1, 0.2)
    search["trials"][0]["run"]["recipe"]["schedule"] = "</script><script>nothing()</script>"
    for kind in ("sim-rff", "sim-single"):
        Image.fromarray(255 - pixels).save(place / "images" / f"set16-one-{kind}.png")
        result = made(f"image/{kind}") | {"set": "set16", "pictures": ["one"]}
        result["run"]["task"] |= {"pictures": str(pictures), "size": 16}
        results.append(result)
    for i, result in enumerate([*results, strange]):
        (place / f"result-{i}.json").write_text(json.dumps(result))
    (place / "search-kept.json").write_text(json.dumps(search))
    (place / "broken.json").write_text("{")
    return place


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("page")
    assert main(["report", str(folder), "--out", str(out)]) == 0
    return out / "index.html"


def opened(page, script, tmp_path, *options):
    """What `script`, the body of a function, returns inside the opened page; the page's own errors are none."""
    probe = f"""<script>addEventListener("load", () => setTimeout(() => {{
      const found = (() => {{ {script} }})();
      const note = document.createElement("pre"); note.id = "probe";
      note.textContent = JSON.stringify({{ found, errors }}); document.body.append(note); }}, 50));</script>"""
    copy = tmp_path / "probe.html"
    text = page.read_text().replace("<head>", f"<head>{LISTEN}", 1)
    head, _, tail = text.rpartition("</body>")
    copy.write_text(f"{head}{probe}</body>{tail}")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--window-size=1200,900"]
    done = subprocess.run(
        [*command, *options, "--dump-dom", copy.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert not re.findall(r".*CONSOLE.*", done.stderr)
    note = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert note, done.stdout[-2000:]
    answer = json.loads(re.sub(r"&(lt|gt|amp);", lambda m: {"lt": "<", "gt": ">", "amp": "&"}[m[1]], note[1]))
    assert answer["errors"] == []
    return answer["found"]


class Links(HTMLParser):
    """Everything a page would fetch, and its anchors."""

    def __init__(self):
        super().__init__()
        self.fetched, self.anchors, self.names = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.names += [given["id"]] if given.get("id") else []
        self.fetched += [given["src"]] if "src" in given else []
        self.fetched += [given["href"]] if tag == "link" else []
        self.anchors += [given["href"]] if tag == "a" else []


def test_it_stands_alone(page):
    links = Links()
    links.feed(page.read_text())
    assert links.fetched
    assert all(link.startswith("data:") for link in links.fetched)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page.read_text())
    for anchor in links.anchors:
        assert anchor[1:] in links.names if anchor[0] == "#" else (page.parent / anchor).exists()
    assert {"table1", "table2", "table3", "curves", "speed", "pictures", "searches", "runs", "left-out"} <= set(
        links.names
    )


@needs_browser
def test_it_opens_complete_and_without_errors(page, tmp_path):
    found = opened(
        page,
        """return {
          tables: Object.fromEntries([...document.querySelectorAll("section")].map((s) =>
            [s.id, s.querySelectorAll("tbody tr").length])),
          charts: [...document.querySelectorAll(".chart")].map((c) => c.querySelectorAll("svg path, svg .dot").length),
          bars: [...document.querySelectorAll(".bar b")].map((b) => b.getBoundingClientRect().width),
          images: [...document.querySelectorAll("img")].map((i) => i.naturalWidth),
          wide: document.documentElement.scrollWidth <= innerWidth,
          numbers: getComputedStyle(document.querySelector("#table1 td:last-child")).textAlign,
          strange: document.querySelector("#table2").textContent.includes("<img src=x onerror=nothing()>&amp;"),
        };""",
        tmp_path,
    )
    lines = {name: (page.parent / f"{name}.csv").read_text().count("\n") - 1 for name in ("table1", "table2", "runs")}
    assert {name: found["tables"][name] for name in lines} == lines == {"table1": 2, "table2": 2, "runs": 7}
    assert all(found["charts"])
    assert found["bars"][0] > 50
    assert found["images"] == [16, 16, 16]
    assert found["wide"]
    assert found["numbers"] == "right"
    assert found["strange"]


@needs_browser
def test_the_slider_moves_and_models_can_be_chosen(page, tmp_path):
    found = opened(
        page,
        """const figure = document.querySelector(".compare"), range = figure.querySelector("input");
        const seen = () => ({ at: getComputedStyle(figure.querySelector(".over")).clipPath,
          handle: figure.querySelector(".handle").getBoundingClientRect().left
            - figure.querySelector(".stage").getBoundingClientRect().left,
          shown: [...figure.querySelectorAll(".over")].filter((i) => !i.hidden).map((i) => i.alt),
          label: figure.querySelector(".right").textContent, width: figure.querySelector(".stage").clientWidth });
        const before = seen();
        range.value = 20; range.dispatchEvent(new Event("input", { bubbles: true }));
        figure.querySelectorAll(".models button")[1].click();
        return { before, after: seen() };""",
        tmp_path,
    )
    before, after = found["before"], found["after"]
    assert "50%" in before["at"]
    assert "20%" in after["at"]
    assert after["handle"] == pytest.approx(0.2 * after["width"], abs=2)
    assert before["handle"] == pytest.approx(0.5 * after["width"], abs=2)
    assert before["shown"] == [before["label"]]
    assert after["shown"] == [after["label"]]
    assert before["shown"] != after["shown"]


@needs_browser
def test_charts_answer_to_mouse_legend_and_switches(page, tmp_path):
    found = opened(
        page,
        """const figure = document.querySelector("#curves .chart"), tip = document.getElementById("tip");
        const paths = () => [...figure.querySelectorAll("path")].map((p) => p.getAttribute("d"));
        const texts = () => [...figure.querySelectorAll("svg text")].map((t) => t.textContent);
        const button = (text) => [...figure.querySelectorAll("button")].find((b) => b.textContent === text);
        const all = paths(), labels = texts();
        const dot = figure.querySelector("circle.dot").getBoundingClientRect();
        figure.querySelector("svg").dispatchEvent(new PointerEvent("pointermove",
          { clientX: dot.left + 2, clientY: dot.top + 2, bubbles: true }));
        const told = tip.hidden ? "" : tip.textContent;
        figure.querySelector("svg").dispatchEvent(new PointerEvent("pointerleave"));
        const hushed = tip.hidden;
        button("SIM (single)").click(); const fewer = paths(); const pressed = button("SIM (single)").ariaPressed;
        button("SIM (single)").click(); const again = paths();
        button("epoch").click(); const epochs = paths(), epochLabels = texts();
        button("linear y").click(); const linear = paths();
        button("DEQ").click(); button("SIM (single)").click(); const none = paths();
        return { all, labels, told, hushed, fewer, pressed, again, epochs, epochLabels, linear, none };""",
        tmp_path,
    )
    assert len(found["all"]) == 3
    assert "seconds" in found["labels"]
    assert "without memory" in found["labels"]
    assert re.fullmatch(r"DEQ, seed 0\nepoch 1\nseconds 2\ntraining loss 0.1", found["told"])
    assert found["hushed"]
    assert len(found["fewer"]) == 1  # both seeds go at once
    assert found["pressed"] == "false"
    assert found["again"] == found["all"]
    assert "epoch" in found["epochLabels"]
    assert found["epochs"] != found["all"]
    assert found["linear"] != found["epochs"]
    assert found["none"] == []


@needs_browser
def test_points_stand_where_their_values_are(page, tmp_path):
    """Seconds 2, 4, 6 on a linear axis are evenly spaced; losses .1, .01, .001 on a logarithmic one are too."""
    dots = opened(
        page,
        """const figure = document.querySelector("#curves .chart");
        [...figure.querySelectorAll("button")].find((b) => b.textContent === "linear x").click();
        return [...figure.querySelector("g").querySelectorAll(".dot")].map((c) =>
          [+c.getAttribute("cx"), +c.getAttribute("cy")]);""",
        tmp_path,
    )
    (x0, y0), (x1, y1), (x2, y2) = dots
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y1 - y0 == pytest.approx(y2 - y1)
    assert x1 > x0
    assert y1 > y0  # downwards: the loss falls


@needs_browser
@pytest.mark.parametrize("width", [390, 1200])
def test_light_and_dark_and_narrow(page, tmp_path, width):
    found = opened(
        page,
        """const button = document.getElementById("theme");
        const ground = () => getComputedStyle(document.body).backgroundColor;
        const seen = [ground()]; button.click(); seen.push(ground()); button.click(); seen.push(ground());
        return { seen, label: button.textContent,
          overflow: [...document.querySelectorAll("section, figure, h1, p")].filter((n) =>
            n.getBoundingClientRect().right > innerWidth + 1).map((n) => n.id || n.className || n.textContent) };""",
        tmp_path,
        f"--window-size={width},900",
    )
    auto, light, dark = found["seen"]
    assert auto == light != dark
    assert found["label"] == "theme: dark"
    assert found["overflow"] == []


def test_the_recorded_results_make_a_small_page_soon(tmp_path, capsys):
    began = time.process_time()
    assert main(["report", str(RECORDED), "--out", str(tmp_path), "--json"]) == 0
    spent = time.process_time() - began
    said = json.loads(capsys.readouterr().out)
    assert said["runs"] >= 30
    assert said["searches"] >= 10
    assert (tmp_path / "index.html").stat().st_size < 3_000_000
    assert spent < 60  # of its own work: how busy the machine is does not count
    for name in ("table1", "table2", "speed", "spectra", "searches", "runs"):
        assert (tmp_path / f"{name}.tex").exists()
