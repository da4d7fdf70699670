#!/usr/bin/env python3
"""Checks the links between the pages of the repository.

Every relative link must name a file, and its fragment a heading of that file; docs/SUMMARY.md must list every page below
docs/. Exits with 1 and prints each link that does not.
"""

import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`]*`")


def pages():
    """The tracked pages, and those not yet tracked."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [page for page in map(pathlib.Path, listed.splitlines()) if page.exists()]


def anchors(page):
    """The fragments that the headings of a page get."""
    found = set()
    for line in page.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", heading.group(1).lower())
            found.add(words.replace(" ", "-"))
    return found


def dead_links(page):
    """The links of a page that lead nowhere."""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("    "):
            continue
        for target in LINK.findall(CODE.sub("", line.replace("](`", "]("))):
            if "://" in target:
                continue
            path, _, fragment = target.partition("#")
            file = page.parent / path if path else page
            if not file.exists() or fragment and fragment not in anchors(file):
                yield f"{page}:{number}: {target}"


def main():
    """Prints dead links and pages that the book does not list."""
    errors = [link for page in pages() for link in dead_links(page)]
    listed = set(LINK.findall(pathlib.Path("docs/SUMMARY.md").read_text(encoding="utf-8")))
    of_book = {str(page.relative_to("docs")) for page in pages() if page.is_relative_to("docs")} - {"SUMMARY.md"}
    errors += [f"docs/SUMMARY.md: {page} is not listed" for page in sorted(of_book - listed)]
    for error in errors:
        print(f"dead link: {error}" if "SUMMARY" not in error else error, file=sys.stderr)
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
