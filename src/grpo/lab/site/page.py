"""The page of a static site and of an export: index.html with classic scripts and all style sheets in one."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import posixpath
import re
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from grpo.lab.guard import PLOT_STYLE
from grpo.lab.site.link import Linker

STATIC = Path(__file__).parents[1] / "static"
KATEX_STYLE = "vendor/katex/dist/katex.min.css"
LIBRARIES = (
    "vendor/d3/dist/d3.min.js",
    "vendor/@observablehq/plot/dist/plot.umd.min.js",
    "vendor/katex/dist/katex.min.js",
)
"""Classic scripts, in the order in which they are loaded."""
WORKER = re.compile(r'openWorker\("([^"]+)"\)')


def index_page() -> str:
    return (STATIC / "index.html").read_text()


def linker() -> Linker:
    [text] = re.findall(r'<script type="importmap">(.*?)</script>', index_page(), re.DOTALL)
    return Linker(STATIC, {name: path.removeprefix("/static/") for name, path in json.loads(text)["imports"].items()})


def app_script() -> str:
    return linker().link("js/app.js")


def worker_scripts() -> dict[str, str]:
    """The linked source of every module that a page starts as a worker, by its path below js/."""
    texts = [file.read_text() for file in sorted((STATIC / "js").rglob("*.js"))]
    paths = sorted({path for text in texts for path in WORKER.findall(text)})
    return {path: linker().link(f"js/{path}") for path in paths}


def worker_text(path: str, source: str) -> str:
    """The script that gives a worker's source to `openWorker` of load.js."""
    return f"(window.grpoWorkers ??= {{}})[{json.dumps(path)}] = {json.dumps(source)};\n"


def styles() -> list[str]:
    """The lab's style sheets: those of index.html in their order, then those that single pages load."""
    linked = re.findall(r'<link rel="stylesheet" href="/static/([^"]+)"', index_page())
    return [*linked, *sorted({file.relative_to(STATIC).as_posix() for file in STATIC.glob("css/*.css")} - {*linked})]


def style_text(sheets: Iterable[str], address: Callable[[str], str]) -> str:
    """The sheets as one; `address` gives the URL of a file of static/."""

    def replaced(sheet: str) -> str:
        def url(found: re.Match[str]) -> str:
            path = found[2]
            if path.startswith(("data:", "#")):
                return found[0]
            inside = (
                path.removeprefix("/static/")
                if path.startswith("/")
                else posixpath.join(posixpath.dirname(sheet), path)
            )
            return f'url("{address(posixpath.normpath(inside))}")'

        return re.sub(r"url\((['\"]?)([^)'\"]+)\1\)", url, (STATIC / sheet).read_text())

    return "\n".join(replaced(sheet) for sheet in sheets)


def data_url(path: str) -> str:
    """A file of static/ as a URL that holds its content."""
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode((STATIC / path).read_bytes()).decode()}"


def policy(source: str, scripts: Iterable[str], sheets: Iterable[str]) -> str:
    """The content security policy as a meta tag; scripts and style sheets inside the page are allowed by their hashes.

    `source` is where files come from: 'self' of a site, which is also what a page from a file calls its folder.
    """
    rules = [
        "default-src 'none'",
        f"script-src {source} {_hashes(scripts)}",
        f"style-src {source} '{PLOT_STYLE}' {_hashes(sheets)}",
        f"font-src {source} data:",
        f"img-src {source} data: blob:",
        "worker-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
    ]
    text = "; ".join(" ".join(rule.split()) for rule in rules)
    return f'<meta http-equiv="Content-Security-Policy" content="{escape(text)}" />'


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)


def inline_script(text: str) -> str:
    """A script that can stand inside a page: an HTML parser looks for these in it, in strings too."""
    return re.sub(r"<(?=/script)", r"<\\", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def page(*, site: str, title: str, head: str, body: str = "", home: str = "") -> str:
    start = f' data-home="{escape(home)}"' if home else ""
    return f"""<!doctype html>
<html lang="en" data-site="{site}"{start}>
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="color-scheme" content="light dark" />
    {head}
    <title>{escape(title)}</title>
  </head>
  <body>
    <div id="app"></div>
    <noscript>The lab needs JavaScript. It loads nothing from other machines.</noscript>{body}
  </body>
</html>
"""
