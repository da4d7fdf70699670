#!/usr/bin/env python3
"""Makes a first corpus from the recorded exchanges in store/tests/data.

Usage: store/fuzz/seeds.py FOLDER      writes FOLDER/{decode,engine,session,server,sock_diag}/*

The committed `corpus` is what the fuzzer derived from these files, minimised.
"""

import json
import pathlib
import struct
import sys

VECTORS = pathlib.Path(__file__).parent.parent / "tests/data/tcpstore-vectors.json"
GREETING = bytes.fromhex("00cef7853c")


def pieces(stream: bytes) -> bytes:
    """Returns a stream for `decode`, as a whole or in a few pieces."""
    cuts = bytes([3, 1, 8, 0]) if len(stream) % 2 else bytes([0])
    return cuts + stream


def script(steps: list, greeted: bool) -> bytes:
    """Returns a script for `session` and `server`: the bytes that each client sends."""
    places, out = {}, bytearray([0])
    for step in steps:
        place = places.setdefault(step["conn"], len(places)) % 4 << 4
        if step["send"] in ("close", "shutdown"):
            out += bytes([place | 14])
            continue
        sent = bytes.fromhex(step["send"])
        # A client of `server` greets first, unless its first action is to leave and not to greet (15).
        if not greeted:
            out += bytes([place | 15])
        for start in range(0, len(sent), 255):
            part = sent[start : start + 255]
            out += bytes([place | 10, len(part)]) + part
        out += bytes([place | 13, 255])
    return bytes(out)


def deeds(kind: int, key: int) -> bytes:
    """Returns a script for `engine`: one client waits, another executes `kind`, both continue."""
    wait = bytes([0x00, 6, 2, key, 1])
    deed = bytes([0x10, kind, key, 2, key])
    other = bytes([0x20, 1, 1, 10, 0x00, 3, 1, 0x20, 10, 1, 11])
    return bytes([kind % 4]) + wait + deed + other + bytes([0x20, 18, key, 1, 0x0F])


def backlogs(key: int) -> list[bytes]:
    """Returns scripts in which a client is released while it has a backlog."""
    wait, release = bytes([0x00, 6, 1, key]), bytes([0x10, 1, key, 0])
    after = bytes([0x0C, 1, 0x00, 13, 7, 0x0D, 255])
    half_a_request = bytes([0x09, 3, 0, 5])
    set_long = bytes([0x20, 1, 2, 11])
    unread = bytes([0x00, 10, 5, 2, 2, 2, 2, 2])
    return [
        bytes([0]) + wait + half_a_request + release + after,
        bytes([0]) + set_long + wait + 5 * unread + release + after + 10 * bytes([0x0D, 255]),
        bytes([0]) + set_long + wait + 5 * unread + half_a_request + release + after,
        bytes([0]) + set_long + 5 * unread + wait + release + bytes([0x0F]) + release,
    ]


def sockets() -> set[bytes]:
    """Returns messages of the kernel about sockets, and rows of its table."""
    seeds = set()
    number = struct.pack("=I", 7)

    def message(kind: int, content: bytes, sequence: int = 7) -> None:
        header = struct.pack("=IHHII", 16 + len(content), kind, 0, sequence, 0)
        seeds.add(b"\0" + number + header + content)

    for state in (1, 4, 5, 6):
        socket = bytes([2, state, 0, 0]) + bytes(48) + struct.pack("=IIIII", 0, 0, 0, 1000, 99)
        message(20, socket)
        message(20, socket, 8)
        message(20, socket[:60])
    for errno in (-2, -1, 0, 2, -(2**31), 2**31 - 1):
        message(2, struct.pack("=i", errno))
    message(2, b"")
    message(3, bytes(4))
    end = "0100007F:1F90"
    long = "0000000000000000FFFF00000100007F:C350"
    for ends in ((end, end), (end, long), (long, long), ("0:0", end), ("x" * 32 + ":1", end), ("é" * 4 + ":1", end)):
        for state, uid in (("01", "1000"), ("06", "0"), ("01", "4294967296"), ("1", "-1")):
            row = f"   0: {ends[0]} {ends[1]} {state} 00000000:00000000 00:00000000 00000000 {uid:>5}  0 1 1"
            seeds.add(b"\1" + f"  sl  local_address rem_address   st\n{row}\n".encode())
    return seeds


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    seeds = {"decode": set(), "engine": set(), "session": set()}
    for case in json.loads(VECTORS.read_text()):
        steps = [s for s in case["steps"] if len(s["send"]) < 4000]
        sent = b"".join(bytes.fromhex(s["send"]) for s in steps if s["send"] not in ("close", "shutdown"))
        seeds["decode"].add(pieces(sent))
        seeds["session"].add(script(steps, case["greeted"]))
    seeds["engine"] = {deeds(kind, key) for kind in range(19) for key in (0, 4, 6)}
    seeds["session"] |= seeds["engine"]
    seeds["session"] |= {text for key in (0, 4) for text in backlogs(key)}
    seeds["server"] = seeds["session"]
    seeds["sock_diag"] = sockets()
    for target, inputs in seeds.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(sorted(inputs)):
            (folder / target / f"{number:03}").write_bytes(text)


if __name__ == "__main__":
    main()
