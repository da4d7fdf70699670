"""Decides which users of this machine may give orders to this process: its own one and root, as the agent decides it.

In a user namespace, the kernel shows all users that the namespace does not map as one: the overflow uid. A process with that uid cannot
distinguish itself from them. So it trusts the uid only if its network is that of the namespace.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

_ALL = 2**32 - 1
# `NS_GET_USERNS` of linux/nsfs.h.
_OWNER_OF_NAMESPACE = 0xB701


def check_owner(uid: int) -> None:
    """Raises `PermissionError` if what belongs to this uid is neither of this user nor of root."""
    own = os.geteuid()
    if uid == 0 or (uid == own and not _may_be_others(uid)):
        return
    if uid == own:
        why = "which may be any user in this user namespace: run the job as another one"
    else:
        why = f"and this process has uid {own}: set TMPDIR to a folder that no other user may write to"
    raise PermissionError(f"its owner is uid {uid}, {why}")


def check_peer(connection: socket.socket) -> None:
    """Raises `PermissionError` if the other end of a connection is a process of another user."""
    import socket
    import struct

    credentials = struct.Struct("iII")
    text = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    check_owner(credentials.unpack(text)[1])


def _may_be_others(uid: int) -> bool:
    """Returns true if the kernel shows other users by this uid, too."""
    try:
        with open("/proc/sys/kernel/overflowuid") as file:
            if uid != int(file.read()):
                return False
        with open("/proc/self/uid_map") as file:
            mapped = sum(int(line.split()[2]) for line in file)
    except FileNotFoundError:
        # A kernel without user namespaces.
        return False
    return mapped < _ALL and not _has_own_network()


def _has_own_network() -> bool:
    """Returns true if the network is that of the user namespace, which other users do not reach."""
    import fcntl

    try:
        with open("/proc/self/ns/net") as network:
            # It fails if the owner is a namespace above.
            owner = fcntl.ioctl(network, _OWNER_OF_NAMESPACE)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user"))
    finally:
        os.close(owner)
