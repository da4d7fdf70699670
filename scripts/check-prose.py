#!/usr/bin/env python3
"""Checks the prose of comments, messages and documentation.

A block is a run of comment lines, one string of a message, or one paragraph of a page. CONTRIBUTING.md has the
rules, docs/glossary.md the terms. Exits with 1 if

- more than LIMIT of any kind of block contains a listed form, or
- a page for readers has a sentence of more than MAX_WORDS words.

It also prints how many semicolons and examples each page for readers has per 1,000 words.

    scripts/check-prose.py                  all of the repository: a table by folder, and one by page
    scripts/check-prose.py --list PATH...   the blocks with such a form, and the long sentences, by file and line
"""

import argparse
import pathlib
import re
import subprocess
import sys

LIMIT = 0.01
# The most words of a sentence: a reader remembers the beginning of such a sentence at its end.
MAX_WORDS = 30

FORMS = {
    "tell": r"\b(told|tells?|telling)\b",
    "say": r"\b(says?|said|saying)\b",
    "hear": r"\b(heard|hears?|hearing)\b",
    "is no": r"(?<!\bthere )\b(is|are|was|were|be) no (?!longer|more\b|later|earlier|doubt)",
    "whoever": r"\b(whoever|whatever|whom|whichever)\b",
    "the one that": r"\b(the ones? (that|who|which)|one that|those (who|that|which)|that of (the )?one)\b",
    "beside": r"\bbeside\b",
    "behind": r"\bbehind (?!(a |the |an )?(NAT|firewall|proxy|load balancer|router))",
    "anew": r"\banew\b",
    "mend": r"\bmend(s|ed|ing)?\b",
    "stand": r"\b(stands?|stood) (in|for|still|there|aside)\b",
    "somebody": r"\b(nobody|somebody|anybody|everybody|everyone|anyone|someone)\b",
}
PATTERN = {name: re.compile(form, re.IGNORECASE) for name, form in FORMS.items()}
CLAUSE = re.compile(r"^(What|How|Where|Whether|Why|Who|Whose|Which|Whom|When)\b(?!.*\?$)")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"(!?)\[([^\]]*)\]\([^)]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*]*\s+")
EXAMPLE = re.compile(r"\b(for example|such as|examples?:)", re.IGNORECASE)


def files():
    """The tracked files with prose."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        path = pathlib.Path(name)
        if path.suffix in (".rs", ".md", ".py", ".sh") and path.exists():
            yield path


def comment_blocks(lines, marker):
    """Runs of comment lines: the first line's number, whether it documents an item, and the text."""
    block, start, is_doc = [], 0, False
    for number, line in enumerate([*lines, ""], 1):
        match = re.match(marker, line)
        if match:
            if not block:
                start, is_doc = number, match.group(1) == "///"
            block.append(line[match.end() :].strip())
        elif block:
            yield start, is_doc, " ".join(block)
            block = []


def messages(text):
    """String literals of several words outside of comments and tests."""
    head = re.split(r"#\[cfg\(test\)\]\s*(?:pub\(\w+\) )?mod \w+ \{", text)[0]
    head = re.sub(r"(?m)^\s*//.*$", lambda match: " " * len(match.group()), head)
    for match in STRING.finditer(head):
        words = re.sub(r"\\\s+", "", match.group(1))
        if len(words.split()) >= 3:
            yield head.count("\n", 0, match.start()) + 1, words


def paragraphs(lines):
    """Paragraphs, items and rows of a page, without its code blocks."""
    block, start, is_code = [], 0, False
    for number, line in enumerate([*lines, ""], 1):
        if line.strip().startswith("```"):
            is_code = not is_code
        starts = re.match(r"\s*([-*|#]|\d+\.) ?", line)
        if not line.strip() or starts or is_code:
            if block:
                yield start, " ".join(block)
            block = []
        if line.strip() and not is_code and not line.startswith("    ") and not line.strip().startswith("```"):
            if not block:
                start = number
            block.append(line.strip())


def blocks(path):
    """All blocks of a file: their kind, line and text."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    if path.suffix == ".md":
        for line, words in paragraphs(lines):
            yield "docs", line, False, words
        return
    marker = r"\s*(///|//!|//)(?!/)" if path.suffix == ".rs" else r"\s*(#)(?!!)"
    for line, is_doc, words in comment_blocks(lines, marker):
        yield "comments", line, is_doc, words
    is_test = "tests" in path.parts or path.name == "tests.rs" or "benches" in path.parts
    if path.suffix == ".rs" and not is_test:
        for line, words in messages(text):
            yield "messages", line, False, words


def forms(words, is_doc):
    """The listed forms of a block."""
    words = CODE.sub("`code`", words)
    found = [name for name, pattern in PATTERN.items() if pattern.search(words)]
    return found + (["clause"] if is_doc and CLAUSE.match(words) else [])


def is_for_readers(path):
    """True for the pages whose sentences are measured."""
    return path.suffix == ".md" and (path.parts[0] == "docs" or str(path) in ("README.md", "CONTRIBUTING.md"))


def sentences(path):
    """The sentences of a page: the line of their paragraph, and the text. Not those of tables, headings and lists of links."""
    for line, words in paragraphs(path.read_text(encoding="utf-8").split("\n")):
        if words.startswith(("|", "#", "<")):
            continue
        of_links = sum(len(text.split()) for _, text in LINK.findall(words))
        plain = LINK.sub(lambda link: "" if link.group(1) else link.group(2), CODE.sub("`code`", words))
        plain = re.sub(r"^([-*]|\d+\.) ", "", plain)
        if len(plain.split()) <= 2 * of_links:
            continue
        for sentence in SENTENCE_END.split(plain):
            yield line, sentence


def check_pages(pages, listed):
    """Prints the table of the pages, and lists their long sentences. Returns true if there is one."""
    failed = False
    if not listed:
        print(f"\n{'page':40} {'words':>6} {'long':>5}   per 1,000 words: semicolons, examples")
    total = [0, 0, 0, 0]
    for path in sorted(pages):
        found = list(sentences(path))
        too_long = [(line, text) for line, text in found if len(text.split()) > MAX_WORDS]
        text = " ".join(text for _, text in found)
        counts = [len(text.split()), len(too_long), text.count(";"), len(EXAMPLE.findall(text))]
        total = [sum(pair) for pair in zip(total, counts)]
        failed |= bool(too_long)
        if not listed:
            print_page(path, counts)
        for line, sentence in too_long:
            if not listed or any(path.is_relative_to(part) for part in listed):
                message = f"{path}:{line}: {len(sentence.split())} words: {sentence[:160]}"
                print(message, file=sys.stdout if listed else sys.stderr)
    if not listed:
        print_page("all", total)
    return failed


def print_page(name, counts):
    """Prints a row of the table of the pages."""
    words, too_long, semicolons, examples = counts
    thousands = max(words, 1) / 1000
    print(f"{name!s:40} {words:6} {too_long:5}   {semicolons / thousands:5.1f} {examples / thousands:5.1f}")


def main():
    """Prints the tables or the list."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--list", nargs="+", metavar="PATH", help="list the blocks below these paths")
    given = parser.parse_args()
    counts, pages = {}, []
    for path in files():
        if path.name in ("check-prose.py", "LICENSE"):
            continue
        if is_for_readers(path):
            pages.append(path)
        is_listed = given.list and any(path.is_relative_to(part) for part in given.list)
        for kind, line, is_doc, words in blocks(path):
            found = forms(words, is_doc)
            folder = path.parts[0] if len(path.parts) > 1 else "."
            count = counts.setdefault((kind, folder), [0, 0])
            count[0] += 1
            count[1] += bool(found)
            if is_listed and found:
                print(f"{path}:{line}: {kind}: {', '.join(found)}: {words[:160]}")
    if given.list:
        check_pages(pages, given.list)
        return 0
    failed = False
    print(f"{'blocks':10} {'folder':12} {'all':>6} {'listed':>6}  share")
    for kind in ("comments", "messages", "docs"):
        of_kind = {folder: count for (one, folder), count in sorted(counts.items()) if one == kind}
        total = [sum(column) for column in zip(*of_kind.values())]
        for folder, (blocks_in, listed) in [*of_kind.items(), ("all", total)]:
            print(f"{kind:10} {folder:12} {blocks_in:6} {listed:6}  {listed / blocks_in:6.1%}")
        failed |= total[1] > LIMIT * total[0]
    if failed:
        print(f"more than {LIMIT:.0%} of a kind of block has a form that CONTRIBUTING.md lists", file=sys.stderr)
    if check_pages(pages, []):
        print(f"a sentence of a page has more than {MAX_WORDS} words: make two of it", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
