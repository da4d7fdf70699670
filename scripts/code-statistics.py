#!/usr/bin/env python3
"""Prints statistics of the code base, so that a change of its structure can be compared before and after.

    scripts/code-statistics.py [FOLDER]      of another checkout, such as a worktree of an older commit
    scripts/code-statistics.py --check       only fails if a number of `MOST` is exceeded

Files and lines include unit tests, the column "own" does not. A function's length is the number of lines from `fn` to the last brace; functions
of tests count only in the set `tests`. Files of unit tests need no header. `unwrap/expect` are calls outside of tests.
A file imports from another one of its crate if it names a path of it outside of tests. Imports between a file and the modules
inside of it do not count. A type name is used twice if two files define a type of this name.
"""

import argparse
import os
import pathlib
import re
import runpy
import subprocess
import sys

LONG_FILE = 400
LONG_FUNCTION = 60
# The most that `--check` allows, outside of tests. Lower a number when you go below it. If your change needs more, raise the number in the same
# commit, and say why in its message.
MOST = {
    "own lines": 99_881,
    "type names used twice": 51,
    f"files above {LONG_FILE} own lines": 39,
    f"functions above {LONG_FUNCTION} lines": 28,
}
SETS = {
    "agent": ["agent/src"],
    "agent/node": ["agent/node/src"],
    "agent/coordinator": ["agent/coordinator/src"],
    "agent/workers": ["agent/workers/src"],
    "agent/leadership": ["agent/leadership/src"],
    "agent/options": ["agent/options/src"],
    "agent/base": ["agent/base/src"],
    "agent/core": ["agent/core/src"],
    "rendezvous": ["rendezvous/src", "rendezvous/election/src"],
    "store": ["store/src"],
    "proto": ["proto/src"],
    "tests": ["tests", "store/tests", "store/fuzz", "agent/fuzz"],
}
HEADINGS = ["set", "files", "lines", "own", "file med", "p90", "max", f">{LONG_FILE}", "fns", "fn med", "p90", "max"]
HEADINGS += [f">{LONG_FUNCTION}", "no //!", "comment", "unwrap/expect"]

NOT_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/                                # comments
    | \b[bc]?r(\#*)".*?"\1                                  # raw strings
    | "(?:\\.|[^"\\])*"                                     # other strings
    | '(?:\\u\{[^}]*\}|\\x..|\\.|[^'\\\n])'                 # characters, but not lifetimes""",
    re.DOTALL | re.VERBOSE,
)
BRACKET = re.compile(r"[{}()\[\];]")
# Code that is compiled for tests, and perhaps for fuzzing: `test`, `all(test, …)` and `any(test, …)`.
CFG_TEST = re.compile(r"#\[cfg\((?:(?:all|any)\()?test\b[^\]]*\]")
TEST_FILE = re.compile(CFG_TEST.pattern + r"\s*(?:pub(?:\([^)]*\))? )?mod (\w+);")
TYPE = re.compile(r"\b(?:struct|enum|trait|union) (\w+)")
FUNCTION = re.compile(r"\bfn\s+\w+")
VISIBILITY = re.compile(r"\bpub\s*\(\s*in\b[^)]*\)")
TOKEN = re.compile(r"\w+|::|\S")


def item(code, start):
    """True if the item from `start` on has a body in braces, and the position of the item's end."""
    depth = 0
    for match in BRACKET.finditer(code, start):
        bracket = match.group()
        if bracket in "([{":
            depth += 1
        elif bracket in ")]}":
            depth -= 1
            if depth < 0 or (depth == 0 and bracket == "}"):
                return depth == 0, match.end()
        elif depth == 0:
            return False, match.end()
    return False, len(code)


def blank(text):
    """The text with a space for each character except line ends."""
    return re.sub(r"\S", " ", text)


class Source:
    """A Rust file."""

    def __init__(self, path):
        self.path = path
        text = pathlib.Path(path).read_text(encoding="utf-8")
        self.lines = text.count("\n")
        self.comment_lines = sum(line.lstrip().startswith("//") for line in text.split("\n"))
        self.has_header = re.search(r"(?m)^//!", text) is not None
        self.all_code = NOT_CODE.sub(lambda match: blank(match.group()), text)
        # The stems of files that are modules of tests.
        folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
        self.test_files = {folder / name for name in TEST_FILE.findall(self.all_code)}
        self.code = self.all_code
        self.test_lines = 0
        while match := CFG_TEST.search(self.code):
            end = item(self.code, match.end())[1]
            self.test_lines += self.code.count("\n", match.start(), end) + 1
            self.code = self.code[: match.start()] + blank(self.code[match.start() : end]) + self.code[end:]
        self.is_test = False  # `sources` sets it.

    @property
    def own_lines(self):
        """The lines outside of tests."""
        return 0 if self.is_test else self.lines - self.test_lines

    def lengths(self, with_tests):
        """The lengths of the functions, in lines."""
        code = self.all_code if with_tests else "" if self.is_test else self.code
        found = ((match.start(), *item(code, match.end())) for match in FUNCTION.finditer(code))
        return [code.count("\n", start, end) + 1 for start, has_body, end in found if has_body]


def sources():
    """The Rust files of the repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.rs"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [Source(path) for path in map(pathlib.PurePath, sorted(set(listed))) if pathlib.Path(path).exists()]
    test_files = set().union(*(source.test_files for source in found))
    for source in found:
        source.is_test = not test_files.isdisjoint([source.path.with_suffix(""), *source.path.parents])
    return found


def spread(values):
    """Median, 90th percentile and maximum."""
    values = sorted(values)
    return [values[len(values) // 2], values[(len(values) * 9 - 1) // 10], values[-1]] if values else ["-"] * 3


def row(name, files):
    """The row of a set."""
    if not files:
        return [name, 0] + ["-"] * (len(HEADINGS) - 2)
    is_tests = name == "tests"
    lines = [source.lines for source in files]
    lengths = [length for source in files for length in source.lengths(with_tests=is_tests)]
    code = "\n".join(source.code for source in files if not source.is_test)
    calls = [len(re.findall(call, code)) for call in (r"\.\s*unwrap\s*\(\s*\)", r"\.\s*expect\s*\(")]
    cells = [name, len(files), f"{sum(lines):,}", f"{sum(source.own_lines for source in files):,}", *spread(lines), sum(length > LONG_FILE for length in lines)]
    cells += [f"{len(lengths):,}", *spread(lengths), sum(length > LONG_FUNCTION for length in lengths)]
    cells += [sum(not source.has_header for source in files if not source.is_test)]
    comment_lines = sum(source.comment_lines for source in files)
    return [*cells, f"{comment_lines / sum(lines):.1%}", "-" if is_tests else f"{calls[0]}/{calls[1]}"]


def rows(found):
    """The rows of all sets."""
    all_crates = []
    for name in SETS:
        files = [source for source in found if is_in(source, name)]
        yield row(name, files)
        if name != "tests":
            all_crates += files
    yield row("all but tests", all_crates)


def tree(tokens, at, above, paths):
    """Adds the paths of the import tree at `at`, all below `above`, and returns the position of its end."""
    while True:
        if tokens[at] == "{":
            at += 1
            while tokens[at] != "}":
                at = at + 1 if tokens[at] == "," else tree(tokens, at, above, paths)
            return at + 1
        above = [*above, tokens[at]]
        at += 3 if tokens[at + 1] == "as" else 1
        if tokens[at] != "::":
            paths.append(above)
            return at
        at += 1


def imports(source, crate, modules):
    """The modules, other than itself, those above and those inside of it, that a file names a path of. A path starts at its crate."""
    tokens = [*TOKEN.findall(VISIBILITY.sub("", source.code)), "", ""]
    paths, at = [], 0
    while at < len(tokens) - 2:
        is_local = tokens[at] in ("crate", "self", "super") and tokens[at + 1] == "::"
        at = tree(tokens, at, [], paths) if is_local else at + 1
    here = module_of(source, crate)
    for path in paths:
        absolute = () if path[0] == "crate" else here
        for word in path:
            absolute = absolute[:-1] if word == "super" else absolute + (word,) * (word not in ("crate", "self"))
        while absolute not in modules:
            absolute = absolute[:-1]
        if here[: len(absolute)] != absolute and absolute[: len(here)] != here:
            yield absolute


def module_of(source, crate):
    """The path of a file's module in its crate."""
    parts = source.path.relative_to(crate).with_suffix("").parts
    return () if parts in (("lib",), ("main",)) else parts


def circles(pairs, modules):
    """The sets of modules that all import from each other, directly or not. The largest set is first."""
    reached = {module: {to for start, to in pairs if start == module} for module in modules}
    for middle in modules:
        for start in modules:
            if middle in reached[start]:
                reached[start] |= reached[middle]
    sets = {frozenset(other for other in reached[one] if one in reached[other]) for one in modules}
    return sorted(filter(None, sets), key=lambda circle: (-len(circle), sorted(circle)))


def structure(found):
    """The statistics of files that import from each other, and of names."""
    in_circles = []
    for crate in sorted({folder for name, folders in SETS.items() if name != "tests" for folder in folders}):
        files = [source for source in found if source.path.is_relative_to(crate) and not source.is_test]
        modules = {module_of(source, crate) for source in files} | {()}
        pairs = {(module_of(source, crate), other) for source in files for other in imports(source, crate, modules)}
        in_circles += ((crate, circle) for circle in circles(pairs, modules))
    yield "circles of files", len(in_circles)
    for crate, circle in in_circles:
        yield f"  {crate}", ", ".join(sorted("/".join(module) for module in circle))
    twice = names_used_twice(found)
    yield "type names used twice", f"{len(twice)}: {', '.join(twice)}"


def is_in(source, name):
    """True if the file is in this set."""
    return any(source.path.is_relative_to(folder) for folder in SETS[name])


def names_used_twice(found):
    """The names of types that several files define outside of tests."""
    names = {}
    for source in found:
        if not source.is_test and not is_in(source, "tests"):
            for name in TYPE.findall(source.code):
                names.setdefault(name, set()).add(source.path)
    return sorted(name for name, files in names.items() if len(files) > 1)


def check(found):
    """Exits with an error if a number of `MOST` is exceeded."""
    program = [source for source in found if any(is_in(source, name) for name in SETS if name != "tests")]
    counts = [
        sum(source.own_lines for source in program),
        len(names_used_twice(found)),
        sum(source.own_lines > LONG_FILE for source in program),
        sum(length > LONG_FUNCTION for source in program for length in source.lengths(with_tests=False)),
    ]
    larger = [f"{count:,} {name}, at most {most:,}" for (name, most), count in zip(MOST.items(), counts) if count > most]
    if larger:
        sys.exit(f"error: the code has grown: {'; '.join(larger)}. Remove code, or raise the number in `MOST` of {pathlib.Path(__file__).name} and say why")


def prose():
    """The shares of blocks with forms that scripts/check-prose.py of this script's repository lists."""
    check = runpy.run_path(str(pathlib.Path(__file__).resolve().with_name("check-prose.py")))
    found = {"comments": [], "messages": [], "docs": []}
    for path in check["files"]():
        if path.name == "check-prose.py":
            continue
        for kind, _, is_doc, words in check["blocks"](path):
            found[kind].append(bool(check["forms"](words, is_doc)))
    for kind, are_listed in found.items():
        listed, total = sum(are_listed), len(are_listed)
        yield f"{kind} with listed forms", f"{listed / max(total, 1):.1%} ({listed:,} of {total:,})"
    yield "words of README.md", f"{len(pathlib.Path('README.md').read_text(encoding='utf-8').split()):,}"


def main():
    """Prints the tables."""
    home = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", default=home, metavar="FOLDER", help="a checkout of the repository")
    parser.add_argument("--check", action="store_true", help="only fail if a number is exceeded")
    args = parser.parse_args()
    os.chdir(args.folder)
    if args.check:
        return check(sources())
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], check=True, capture_output=True, text=True)
    print(f"commit {commit.stdout.strip()}\n")
    found = sources()
    table = [HEADINGS, *rows(found)]
    widths = [max(len(str(cell)) for cell in column) for column in zip(*table)]
    for cells in table:
        first, *others = (str(cell) for cell in cells)
        print("  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]))
    print()
    for name, value in [*structure(found), *prose()]:
        print(f"{name:34} {value}")


if __name__ == "__main__":
    main()
