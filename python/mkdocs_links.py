"""A hook of mkdocs: pages of the repository that lie elsewhere are on the site too, and links lead to where pages are.

The landing page is a section of the repository's README. Links to pages that are not on the site become plain text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

# Pages of the site by their files in the repository. All others have the same path as below `docs/`.
PAGES = {"README.md": "index.md", "python/README.md": "python/package.md"}
LANDING = re.compile(r"^## In Python\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    repository = Path(config.config_file_path).parents[1]
    (section,) = LANDING.findall((repository / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=section.replace("## In Python", f"# {config.site_name}")))
    files.append(File.generated(config, "python/package.md", abs_src_path=str(repository / "python/README.md")))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    uri = page.file.src_uri
    sources = {shown: source for source, shown in PAGES.items()}
    directory = posixpath.dirname(sources.get(uri, f"docs/{uri}"))

    def link(match: re.Match[str]) -> str:
        text, (path, hash_sign, anchor) = match[1], match[2].partition("#")
        if not path or "://" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(directory, path))
        target = PAGES.get(target, target.removeprefix("docs/"))
        file = files.get_file_from_path(target)
        if file is None or file.inclusion.is_excluded():
            return text
        return f"[{text}]({posixpath.relpath(target, posixpath.dirname(uri) or '.')}{hash_sign}{anchor})"

    return re.sub(r"\[([^]]+)]\(([^)]+)\)", link, markdown)
