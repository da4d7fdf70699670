"""The types of the Python module, and the oldest version of Python that it and `ragent-notices` support."""

from conftest import ROOT, TOOLS, run

MODULE = ROOT / "packaging/python/ragent"


def test_types():
    """All functions have types, which are consistent."""
    run(TOOLS / "mypy", "--strict", "--cache-dir", "/dev/null", MODULE)


def test_oldest_python():
    """The Python code uses nothing that Python 3.8 lacks. The annotations of the module are not evaluated."""
    notices = ROOT / "packaging/notices/ragent-notices"
    run(TOOLS / "vermin", "--target=3.8-", "--violations", "--no-tips", MODULE, notices)
