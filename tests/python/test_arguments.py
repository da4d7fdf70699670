"""Flags in a command line that is given to `run`."""

import re

import pytest

from ragent._arguments import _SHORT, _SWITCHES, value_of

FLAG = re.compile(r"^ {2,6}(?:-[a-zA-Z], )?(--[a-z-]+)(.*)$")
SHORT_WITH_VALUE = re.compile(r"^ {2,6}(-[a-zA-Z])(?:, --[a-z-]+)? <")


@pytest.mark.parametrize("command", [[], ["launch"]])
def test_switches_are_those_of_the_program(sandbox, command):
    """The list of flags without a value agrees with the program's help. Otherwise the word after such a flag would be skipped."""
    lines = sandbox.run("-m", "ragent", *command, "--help").succeeds().stdout.splitlines()
    flags = dict(match.groups() for match in map(FLAG.match, lines) if match)
    switches = {flag for flag, rest in flags.items() if not rest.startswith(" <")}
    assert {"--standalone", "--standby"} <= switches, flags
    assert switches - set(_SWITCHES) == set()
    assert {flag for flag in _SWITCHES if flag in flags} == switches
    short = {match[1] for match in map(SHORT_WITH_VALUE.match, lines) if match}
    assert {"-r", "-t"} <= short <= set(_SHORT), short


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--report a train.py --report b", "a"),
        ("--report=a --report=b train.py", "b"),
        ("--standalone --rep a train.py", "a"),
        ("--rdzv-id --report train.py", None),
        ("-t 3 --report a train.py", "a"),
        ("-x NAME --report a train.py", "a"),
        ("-- --report a", None),
    ],
)
def test_values(words, value):
    """The last value before the script counts, and values of other flags are not flags."""
    assert value_of(words.split(), "--report") == value
