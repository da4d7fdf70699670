#!/usr/bin/env python3
"""Records `make demo` as an animated SVG, a terminal in which the demo's lines appear.

    .venv/bin/python scripts/record-demo.py --ragent target/release/ragent docs/demo.svg

Long pauses, in which Python imports torch, are shortened to PAUSE_S. The times that the demo prints are the real ones. Two kinds of lines are
left out: tracebacks of workers contain paths of this machine, and warnings are about its loopback addresses and the events that the demo causes.

The picture begins with the last screen, which is also what a viewer without animations shows.
"""

import argparse
import html
import pathlib
import re
import subprocess
import sys
import time

COLUMNS = 100
ROWS = 30
PAUSE_S = 1.2
END_S = 6.0
CHAR_W, LINE_H, MARGIN = 8.4, 19, 14
COMMAND = "make demo"
# The number of lines that are printed if the demo fails.
LAST_LINES = 40
LEFT_OUT = re.compile(r"agent \w \| (\[rank\d+\]: |(\S+ )?ragent: warning: )")
# The time of a line, which is local and short on a terminal.
TIME = re.compile(r"\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d)\.\d+Z")
DEMO = pathlib.Path(__file__).resolve().parent.parent / "examples" / "digits" / "demo.py"


def record(ragent):
    """The lines of the demo, each with its time in the recording."""
    command = [sys.executable, "-u", str(DEMO), "--ragent", ragent]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines, shown_at, last = [], 1.0, time.monotonic()
    for line in demo.stdout:
        now = time.monotonic()
        shown_at += min(now - last, PAUSE_S)
        last = now
        lines.append((shown_at, TIME.sub(r"\1", line.rstrip("\n").expandtabs())[:COLUMNS]))
    if code := demo.wait():
        for _, line in lines[-LAST_LINES:]:
            print(line, file=sys.stderr)
        sys.exit(f"error: the demo exits with {code}; its last lines are above")
    return [(at, line) for at, line in lines if not LEFT_OUT.match(line)]


def color(line):
    """The colour of a line: steps of the demo, the agents' lines, the workers' lines."""
    if line.startswith("=="):
        return "#e5c07b"
    if "error" in line:
        return "#e06c75"
    return "#98c379" if "ragent: " in line else "#c8ccd4"


def svg(lines):
    """The picture: each line is shown from its time on. Older ones scroll out."""
    lines = [(0.0, f"$ {COMMAND}"), *lines]
    total = lines[-1][0] + END_S
    width, height = COLUMNS * CHAR_W + 2 * MARGIN, ROWS * LINE_H + 2 * MARGIN
    # The delay lets the animation begin when the last line is shown.
    animation = f"{total:.1f}s step-end -{total - END_S:.1f}s infinite"
    style = [f"@media (prefers-reduced-motion:no-preference){{g,text{{animation:{animation}}}}}"]
    text = []
    for number, (at, line) in enumerate(lines):
        share = 100 * at / total
        style.append(f"@keyframes l{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        y = MARGIN + (number + 1) * LINE_H - 5
        text.append(
            f'<text y="{y}" x="{MARGIN}" fill="{color(line)}" style="animation-name:l{number}">{html.escape(line)}</text>'
        )
    scroll = []
    for number in range(ROWS, len(lines)):
        share = 100 * lines[number][0] / total
        scroll.append(f"{share:.2f}%{{transform:translateY(-{(number - ROWS + 1) * LINE_H}px)}}")
    last = max(0, len(lines) - ROWS) * LINE_H
    style.append("@keyframes scroll{0%{transform:none}" + "".join(scroll) + f"100%{{transform:translateY(-{last}px)}}}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}">\n'
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
        + "".join(style)
        + "</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#21252b"/>\n'
        f'<g transform="translate(0,-{last})" style="animation-name:scroll">\n' + "\n".join(text) + "\n</g>\n</svg>\n"
    )


def main():
    """Records and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ragent", default="target/release/ragent", help="the program")
    parser.add_argument("file", type=pathlib.Path, help="the SVG file to write")
    given = parser.parse_args()
    given.file.write_text(svg(record(given.ragent)), encoding="utf-8")


if __name__ == "__main__":
    main()
