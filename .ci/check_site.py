"""The built documentation opens from disk: what its pages load lies beside them, and local links lead to files."""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

SITE = Path(__file__).resolve().parent.parent / "artifacts" / "site"
LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]*\bsrc="([^"]+)"|<link[^>]*\brel="(?:stylesheet|preload)"[^>]*href="([^"]+)"'
)
LINK = re.compile(r'\b(?:href|src)="([^"#?]+)')

pages = [page for page in SITE.rglob("*.html") if page.name != "404.html"]
wrong = []
for page in pages:
    text = page.read_text(encoding="utf-8")
    loaded = ("".join(match) for match in LOADED.findall(text))
    wrong += [f"{page.name} loads {url}" for url in loaded if "//" in url]
    links = (unquote(link) for link in LINK.findall(text) if not re.match(r"\w+:|//", link))
    wrong += [f"{page.name} links to {link}" for link in links if not (page.parent / link).exists()]
if wrong or not pages:
    sys.exit("\n".join(wrong) or f"no pages in {SITE}")
sys.stdout.write(f"{len(pages)} pages, all of which open from disk\n")
