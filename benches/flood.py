#!/usr/bin/env python3
"""Floods the ports of coordinators with connections that do not authenticate themselves.

    benches/flood.py HOST:PORT... [--idle N]

Per port: holds N connections that are silent or have sent half a request, and opens them again when they
are closed. One process begins TLS handshakes with a wrong server name, another one sends requests for
the status and floods of HTTP/2 frames, as fast as they can. Runs until SIGTERM or the end of its parent;
`agent_load --meanwhile` starts it.
"""

import argparse
import contextlib
import multiprocessing
import os
import select
import signal
import socket
import ssl
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BEGINNINGS = [b"", b"P", b"GET /status HT", PREFACE, b"\x16\x03\x01", PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"]
# The rapid opening and resetting of streams, and pings.
FRAMES = PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"".join(
    b"\x00\x00\x04\x03\x00" + stream.to_bytes(4, "big") + b"\x00\x00\x00\x08" for stream in range(1, 2000, 2)
) + 1000 * (b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + bytes(8))
REQUESTS = [b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n", FRAMES]


def connect(address):
    stream = socket.create_connection(address, timeout=5)
    stream.setblocking(False)
    return stream


def idle(address, count):
    streams = {}
    poll = select.poll()
    while True:
        while len(streams) < count:
            try:
                stream = connect(address)
                stream.send(BEGINNINGS[len(streams) % len(BEGINNINGS)])
            except OSError:
                time.sleep(0.01)
                break
            streams[stream.fileno()] = stream
            poll.register(stream, select.POLLIN | select.POLLHUP)
        for descriptor, _ in poll.poll(100):
            poll.unregister(descriptor)
            streams.pop(descriptor).close()


def handshakes(address, _):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    while True:
        with contextlib.suppress(OSError):
            stream = socket.create_connection(address, timeout=5)
            with stream, context.wrap_socket(stream, server_hostname="0" * 32 + ".ragent.invalid"):
                pass


def requests(address, _):
    while True:
        for request in REQUESTS:
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as stream:
                stream.sendall(request)
                stream.recv(65536)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("endpoints", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--idle", type=int, default=2000)
    args = parser.parse_args()
    children = []
    for endpoint in args.endpoints:
        host, port = endpoint.rsplit(":", 1)
        for work in (idle, handshakes, requests):
            child = multiprocessing.Process(target=work, args=((host, int(port)), args.idle), daemon=True)
            child.start()
            children.append(child)
    # Daemon processes end with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    parent = os.getppid()
    while os.getppid() == parent and all(child.is_alive() for child in children):
        time.sleep(1)


if __name__ == "__main__":
    main()
