"""What mkdocs is told while it builds the site: pages that are made, mathematics, and links that leave docs/.

    reference/    from docstrings (tools/reference.py)        notebooks/   from notebooks/*.ipynb and what they showed
    $ ... $       LaTeX becomes MathML: no script, no font    ../FILE      a page of the site, or the repository's file
"""

import base64
import functools
import json
import posixpath
import re
import sys
from pathlib import Path

import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import reference  # noqa: E402

REPOSITORY = "https://github.com/koopsim/koopsim/blob/main"
BESIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
BESIDE |= {"results/LEDGER.md": "ledger.md"}
NAV = {
    "Start": ["index", "start", "install", "choose", "glossary"],
    "Stories": [f"stories/{who}" for who in (
        "researcher", "scientist", "data-scientist", "photographer", "cluster", "extender"
    )],
    "How-to": [
        "tables", "data", "classifying-images", "sequences", "images-as-networks", "trajectories", "own-pytorch",
        "bridge", "implicit", "coming-from-torchdeq", "search", "watching", "report", "scale", "latency",
        "extending", "reliability",
    ],
    "Theory": ["theory", "play", "math", "spectra-matrices", "spectra-data", "invariant-sets"],
    "Notebooks": [f"notebooks/{name}" for name in (
        "quickstart", "from-deq-to-sim", "settle-oscillate-blow-up", "invariant-densities", "own-tables",
        "pictures-as-networks", "search-in-a-minute", "extending",
    )],
    "Evidence": ["evidence", "claims", "speed", "latency", "differences", "ledger", "evidence-history"],
    "Reference": ["reference", "reference/koopsim", "reference/command-line", "zoo"],
    "Project": ["changelog", "contributing", "security"],
}  # fmt: skip
FENCE = re.compile(r"(^```.*?^```|^ {4}.*?$|`[^`\n]+`)", re.M | re.S)


def on_config(config):
    """The navigation: what is there, in the order above; a new page of docs/ finds its place under How-to by itself."""
    docs = ROOT / "docs"
    known = {page for pages in NAV.values() for page in pages}
    written = {str(file.relative_to(docs).with_suffix("")) for file in docs.rglob("*.md")}
    written |= {f"notebooks/{file.stem}" for file in (ROOT / "notebooks").glob("*.ipynb")}
    made = [address.removesuffix(".md") for address in (*BESIDE.values(), *reference_pages())]
    sections = {title: [page for page in pages if page in written or page in made] for title, pages in NAV.items()}
    sections["How-to"] += sorted(written - known)
    sections["Reference"] += [page for page in made if page.startswith("reference/") and page not in known]
    config.nav = [{title: [f"{page}.md" for page in pages]} for title, pages in sections.items() if pages]
    return config


@functools.cache
def reference_pages() -> dict[str, str]:
    return reference.pages()


def on_files(files: Files, config) -> Files:
    """Add the pages that nobody writes by hand."""
    for address, text in reference_pages().items():
        files.append(File.generated(config, address, content=text))
    for name, address in BESIDE.items():
        files.append(File.generated(config, address, content=(ROOT / name).read_text()))
    for picture in sorted((ROOT / "results" / "h200").glob("growth.png")):
        files.append(File.generated(config, f"images/{picture.name}", content=picture.read_bytes()))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for address, content in of_notebook(notebook).items():
            files.append(File.generated(config, address, content=content))
    return files


def of_notebook(file: Path) -> dict[str, str | bytes]:
    """A notebook as a page with its outputs, and its pictures beside it."""
    found: dict[str, str | bytes] = {}
    parts = []
    for number, cell in enumerate(json.loads(file.read_text())["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", text))
            continue
        parts.append(f"```python\n{text}\n```")
        for at, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{file.stem}-{number}-{at}.png"
                found[f"notebooks/{picture}"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What this cell draws]({picture})")
            elif said := "".join(output.get("text", "") or data.get("text/plain", "")).rstrip():
                parts.append(f'```text title="says"\n{said}\n```')
    download = f"\n\n[This page as a notebook]({REPOSITORY}/notebooks/{file.name}), to run and change.\n"
    return found | {f"notebooks/{file.stem}.md": "\n\n".join(parts) + download}


@functools.cache
def mathml(latex: str, display: str) -> str:
    return latex2mathml.converter.convert(latex, display=display)


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Mathematics and links, outside of code."""
    parts = FENCE.split(markdown)
    for i in range(0, len(parts), 2):
        text = parts[i]
        text = re.sub(r"(?<!\\)\$\$(.+?)\$\$", lambda m: mathml(m[1].strip(), "block"), text, flags=re.S)
        text = re.sub(r"(?<![\\$\w])\$([^\s$][^$\n]*?)(?<!\s)\$(?!\w)", lambda m: mathml(m[1], "inline"), text)
        parts[i] = text
    joined = "".join(parts)
    folder = posixpath.dirname(page.file.src_uri)
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", lambda m: f"]({leaving(m[1], folder, files)}", joined)


def leaving(link: str, folder: str, files: Files) -> str:
    """A link out of docs/, as in the repository, is a page of the site where there is one, else a file there."""
    target = posixpath.normpath(posixpath.join("docs", folder, link))
    inside = posixpath.normpath(posixpath.join(folder, link))
    if files.get_file_from_path(inside) is not None:
        return link
    name = target if not target.startswith("docs/") else target.removeprefix("docs/")
    if name in BESIDE:
        return posixpath.relpath(BESIDE[name], folder or ".")
    if name == "results/h200/growth.png":
        return posixpath.relpath("images/growth.png", folder or ".")
    for candidate in (name.removeprefix("docs/"), name):
        if files.get_file_from_path(candidate) is not None:  # CONTRIBUTING.md links to docs/extending.md
            return posixpath.relpath(candidate, folder or ".")
    return f"{REPOSITORY}/{target}" if (ROOT / target).exists() else link


SHIM = "https://unpkg.com/iframe-worker/shim"


def on_post_page(output: str, page, config) -> str:
    """The theme fetches a script for searching without a server from elsewhere; ours is beside the page."""
    return output.replace(SHIM, "../" * page.url.count("/") + "javascripts/worker.js")


def on_post_template(output: str, template_name: str, config) -> str:
    return output.replace(SHIM, "javascripts/worker.js")
