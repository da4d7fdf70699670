"""The tar file, unpacked into any folder."""

import platform
import tarfile

from conftest import package, run


def test_contents(env, tmp_path):
    """The program runs where it is unpacked. The unit has the paths of /usr/local."""
    file = package(f"ragent-*-{platform.machine()}-linux.tar.gz")
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        archive.extractall(tmp_path)
    name = file.name.removesuffix(".tar.gz")
    assert all(member.name.split("/")[0] == name and (member.uid, member.gid) == (0, 0) for member in members)
    folder = tmp_path / name
    assert run(folder / "bin/ragent", "-V", env=env).stdout == f"ragent {name.split('-')[1]}\n"
    assert "slurm" in run(folder / "bin/ragent-notices", "--help", env=env).stdout
    assert "\nExecStart=/usr/local/bin/ragent " in (folder / "lib/systemd/system/ragent@.service").read_text()
    for path in ["share/man/man1/ragent.1.gz", "share/zsh/site-functions/_ragent", "share/doc/ragent/LICENSE", "share/doc/ragent/THIRD-PARTY.txt"]:
        assert (folder / path).is_file(), path
