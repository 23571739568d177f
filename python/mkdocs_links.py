"""A hook of mkdocs: links to pages of the repository that are not on the site become plain text."""

import posixpath
import re
from typing import Any


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    def link(match: re.Match[str]) -> str:
        text, path = match[1], match[2].partition("#")[0]
        if not path or "://" in path:
            return match[0]
        file = files.get_file_from_path(posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), path)))
        return text if file is None or file.inclusion.is_excluded() else match[0]

    return re.sub(r"\[([^]]+)]\(([^)]+)\)", link, markdown)
