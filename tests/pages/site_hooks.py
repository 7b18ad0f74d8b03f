"""Hooks of the documentation site: what mkdocs itself does not do for a repository like this one.

README, the other pages of the root and the examples become pages of the site, and a link to a file that is no page
becomes its name. A link to nothing is left as it is, so that mkdocs ends the build there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
_FENCE = re.compile(r"^ *(```|~~~)")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_CODE = re.compile(r"`[^`\n]*`")
_LIST_IN_PARAGRAPH = re.compile(r"^((?!- |\d+\. )[^\s|#].*\n)(?=- |1\. )", re.MULTILINE)


def pages_of(root: Path) -> dict[str, str]:
    """Path in the repository -> path on the site, of everything that is a page or lies beside one."""
    found = {path.relative_to(root).as_posix(): "" for path in sorted((root / "docs").rglob("*")) if path.is_file()}
    found = {name: name.removeprefix("docs/") for name in found}
    found |= {name: page for name, page in ROOT_PAGES.items() if (root / name).is_file()}
    for path in sorted((root / "examples").glob("*/README.md")):
        found[path.relative_to(root).as_posix()] = f"examples/{path.parent.name}.md"
    return found


def mend_links(text: str, *, name: str, root: Path) -> str:
    """`text` of the page `name` (a path in the repository) with the links that it has on the site."""
    blocks, is_code = [""], False
    for line in text.splitlines(keepends=True):
        if _FENCE.match(line):
            if not is_code:
                blocks.append("")
            blocks[-1] += line
            if is_code:
                blocks.append("")
            is_code = not is_code
        else:
            blocks[-1] += line
    return "".join(b if _FENCE.match(b) else _mend_block(b, name=name, root=root) for b in blocks)


def _mend_block(text: str, *, name: str, root: Path) -> str:
    pages = pages_of(root)
    code = [match.span() for match in _CODE.finditer(text)]

    def mended(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or ":" in target or any(a <= match.start() and match.end() <= b for a, b in code):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        if path in pages:
            here = posixpath.dirname(pages[name])
            there = posixpath.relpath(pages[path], here or ".") + (f"#{anchor}" if anchor else "")
            return f"{match['image']}[{match['text']}]({there})"
        if (root / path).exists() and not path.startswith(".."):
            return f"{match['text']} (`{path}` in the repository)"
        return match[0]

    return _LIST_IN_PARAGRAPH.sub(r"\1\n", _LINK.sub(mended, text))  # elsewhere a list needs no empty line before it


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A folder in the navigation stands for the pages in it."""
    pages = sorted(pages_of(_root(config)).values())
    for part in config.nav or []:
        for title, entry in part.items():
            if isinstance(entry, str) and entry.endswith("/"):
                inside = [page for page in pages if page.startswith(entry) and page.endswith(".md")]
                part[title] = sorted(inside, key=lambda page: (not page.endswith("README.md"), page))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what lies outside of docs/."""
    root = _root(config)
    for name, page in pages_of(root).items():
        if not name.startswith("docs/"):
            files.append(File.generated(config, page, content=(root / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are on the site."""
    del files
    root = _root(config)
    (name,) = [name for name, there in pages_of(root).items() if there == page.file.src_uri]
    return mend_links(markdown, name=name, root=root)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent
