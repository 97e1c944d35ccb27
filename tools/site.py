"""Builds the site into site/ and checks it: `make docs`.

Every link of every page leads to a page, a file or a place on a page that is there; nothing is fetched from elsewhere:
no script, style, font or picture has an address of its own.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parent.parent
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The links of a page, what it fetches, and its places."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {value for key, value in attrs if key in ("id", "name") and value}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        fetches = found.get("rel") != "canonical"
        self.fetched += [str(v) for k, v in attrs if (tag, k) in FETCHED and v and fetches]


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, in one line each."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    wrong = []
    for file, page in pages.items():
        here = file.relative_to(site)
        wrong += [f"{here} fetches {link}" for link in page.fetched if re.match(r"(https?:)?//", link)]
        for link in {*page.links, *page.fetched}:
            if re.match(r"(https?:|mailto:|data:|javascript:|//)", link) or file.name == "404.html":
                continue
            path, place = urldefrag(unquote(link))
            target = (file.parent / path).resolve() if path else file.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{here} links to {link}, which is not there")
            elif place and target.suffix == ".html" and place not in pages[site.resolve() / target].places:
                wrong.append(f"{here} links to {link}: no such place on that page")
    for file in site.rglob("*.css"):
        fetched = re.findall(r"url\([\"']?(https?:[^)\"']+)", file.read_text())
        wrong += [f"{file.name} fetches {link}" for link in fetched]
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    out = parser.parse_args().out.resolve()
    began = time.perf_counter()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode:
        return done.returncode
    wrong = problems(out)
    count, seconds = len(list(out.rglob("*.html"))), time.perf_counter() - began
    print("\n".join(wrong) or f"{count} pages in {seconds:.0f} s: {out}/index.html")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
