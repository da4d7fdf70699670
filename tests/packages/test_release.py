"""The release workflow, the Containerfile, and the conditions of a release."""

import pathlib
import re
import subprocess

from conftest import ROOT, TOOLS, run

WORKFLOW = ROOT / ".github/workflows/release.yml"


def test_workflow():
    """The workflow has the form that GitHub expects, and none of the weaknesses that zizmor knows."""
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOW)
    run(TOOLS / "zizmor", "--offline", "--no-config", WORKFLOW)


def test_containerfile():
    """hadolint finds nothing in the Containerfile."""
    assert run(TOOLS / "hadolint", ROOT / "packaging/Containerfile").stdout == ""


def release(folder, *words):
    end = run("scripts/release.sh", *words, cwd=folder, code=1)
    assert "hint:" in end.stderr
    return end.stderr


def test_conditions(tmp_path):
    """A release needs its tag, a section in the changelog, and a clean checkout. Otherwise nothing is built."""
    copy = tmp_path / "copy"
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.com", "-C", copy]
    run("git", "init", "--quiet", copy)
    for file in ["Cargo.toml", "CHANGELOG.md", "scripts/release.sh"]:
        (copy / file).parent.mkdir(exist_ok=True)
        (copy / file).write_bytes((ROOT / file).read_bytes())
    (copy / "scripts/release.sh").chmod(0o755)
    assert "the checkout has uncommitted changes" in release(copy)
    run(*git, "add", ".")
    run(*git, "commit", "--quiet", "--message", "test")
    assert "the version in Cargo.toml is" in release(copy, "v9.9.9")
    version = re.search('^version = "(.*)"$', (copy / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert "another commit is checked out" in release(copy, f"v{version}")
    (copy / "CHANGELOG.md").write_text("# Changelog\n")
    assert "CHANGELOG.md has no section" in release(copy)
    assert not (copy / "target").exists()


def test_arguments():
    """A kind of package, or an architecture, that does not exist is refused before anything is built."""
    end = run("scripts/build-packages.sh", "wheel", "msi", cwd=ROOT, code=1)
    assert "failed to build the package `msi`" in end.stderr and "wheel deb rpm tar" in end.stderr
    end = run("env", "TARGET=riscv64gc-unknown-linux-gnu", "scripts/build-packages.sh", "wheel", cwd=ROOT, code=1)
    assert "is not a supported target" in end.stderr
    libraries = ["rustc", "--print", "target-libdir", "--target", "aarch64-unknown-linux-gnu"]
    folder = pathlib.Path(subprocess.run(libraries, capture_output=True, text=True, check=True).stdout.strip())
    if not folder.is_dir():
        end = run("env", "TARGET=aarch64-unknown-linux-gnu", "scripts/build-packages.sh", "wheel", cwd=ROOT, code=1)
        assert "run: rustup target add aarch64-unknown-linux-gnu" in end.stderr
