"""The types of the Python module and of the script of `ragent check`, and the oldest version of Python that these and `ragent-notices` support."""

from conftest import ROOT, TOOLS, run

MODULE = ROOT / "packaging/python/ragent"
CHECK = ROOT / "agent/src/commands/check/pairs.py"


def test_types():
    """All functions have types, which are consistent."""
    run(TOOLS / "mypy", "--strict", "--cache-dir", "/dev/null", MODULE, CHECK)


def test_oldest_python():
    """The Python code uses nothing that Python 3.8 lacks. Annotations are not evaluated."""
    notices = ROOT / "packaging/notices/ragent-notices"
    run(TOOLS / "vermin", "--target=3.8-", "--violations", "--no-tips", MODULE, CHECK, notices)
