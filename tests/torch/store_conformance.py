#!/usr/bin/env python3
"""Drives every operation of torch's own TCPStore client against a running server.

    store_conformance.py HOST PORT

Needs an empty store, and a Python with torch 2.12 or newer. Prints one line per rule; exits with 1
at the end if any does not hold. Run it against torch's own server to see that the rules are torch's
(except those marked "ours", which it fails).
"""

import os
import random
import subprocess
import sys
import threading
from datetime import timedelta

# The rules cause timeouts and closed connections, and torch logs a page for each.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

from torch.distributed import (  # noqa: E402
    DistNetworkError,
    DistStoreError,
    PrefixStore,
    QueueEmptyError,
    TCPStore,
)

HOST, PORT = sys.argv[1], int(sys.argv[2])
SHORT = timedelta(milliseconds=200)
LONG = timedelta(minutes=5)
RULES = []


def rule(function):
    """Registers a check, with its docstring as its name."""
    RULES.append(function)
    return function


def connect(**options):
    return TCPStore(HOST, PORT, is_master=False, timeout=LONG, **options)


def impatient(timeout=SHORT):
    """A client whose operations time out soon. Connecting may take longer on a busy machine."""
    store = connect()
    store.set_timeout(timeout)
    return store


def expect(actual, expected):
    if actual != expected:
        raise AssertionError(f"got {actual!r}, expected {expected!r}")


def expect_raises(kind, words, function, *args):
    try:
        result = function(*args)
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"`{error}` does not say `{words}`") from error
    else:
        raise AssertionError(f"got {result!r}, expected {kind.__name__}")


def in_thread(function, *args):
    """Starts `function` in a thread. `join` of that thread re-raises its exception."""

    class Beside(threading.Thread):
        error = None

        def run(self):
            try:
                function(*args)
            except BaseException as error:
                self.error = error

        def join(self):
            super().join(60)
            if self.is_alive():
                raise AssertionError("it never ended")
            if self.error:
                raise self.error

    thread = Beside(daemon=True)
    thread.start()
    return thread


@rule
def constructor_counts(store):
    """A constructor with a world size adds 1 to `init/`, which only it can see."""
    before = store.num_keys()
    connect(world_size=2)
    expect(store.num_keys(), before + 1)
    connect(world_size=2)
    expect(store.num_keys(), before + 1)
    expect([key for key in store.list_keys() if "init" in key], [])


@rule
def set_get(store):
    """`get` returns the value of `set`: empty, UTF-8, under an empty key, overwritten."""
    for key, value in [("k", "v"), ("empty", ""), ("k\u00e9y", "v\u00e4l\u20ac"), ("", "x"), ("k", "w")]:
        store.set(key, value)
        expect(store.get(key), value.encode())


@rule
def large_values(store):
    """A value of 8 MiB is stored. With one byte more the client is disconnected."""
    blob = random.Random(1).randbytes(8 << 20)
    store.set("large", blob)
    expect(store.get("large") == blob, True)
    store.delete_key("large")
    other = connect()

    def too_large():
        other.set("large", blob + b"x")
        other.num_keys()

    expect_raises(DistNetworkError, "", too_large)
    expect(store.check(["large"]), False)


@rule
def long_keys(store):
    """A key of 8192 bytes, with torch's slash, is accepted. A longer one is not."""
    store.set("l" * 8191, "v")
    expect(store.get("l" * 8191), b"v")
    store.delete_key("l" * 8191)
    other = connect()

    def too_long():
        other.set("l" * 8192, "v")
        other.num_keys()

    expect_raises(DistNetworkError, "", too_long)


@rule
def get_waits(store):
    """`get` of a missing key waits for it."""
    other = connect()
    getter = in_thread(lambda: expect(other.get("late"), b"L"))
    store.set("late", "L")
    getter.join()


@rule
def time_outs(store):
    """`get` and `wait` time out, and the connection remains usable."""
    short = impatient()
    for _ in range(2):
        expect_raises(DistStoreError, "wait timeout after 200ms, keys: /nope", short.get, "nope")
        expect_raises(DistStoreError, "wait timeout after 100ms, keys: /nope", short.wait, ["nope"],
                      timedelta(milliseconds=100))
    store.set("nope", "1")
    expect(short.get("nope"), b"1")
    store.delete_key("nope")


@rule
def wait_many(store):
    """`wait` returns once all of its keys have been set, by any operation."""
    other = connect()
    waiter = in_thread(other.wait, ["w1", "w2", "w3", "w4", "w1"])
    store.set("w1", "")
    store.add("w2", 0)
    store.append("w3", "x")
    expect(store.compare_set("w4", "", "x"), b"x")
    waiter.join()
    store.wait([])


@rule
def add(store):
    """`add` counts in decimal, wraps, and parses numbers as C does."""
    expect(store.add("n", 1), 1)
    expect(store.add("n", 41), 42)
    expect(store.add("n", -50), -8)
    expect(store.get("n"), b"-8")
    expect(store.add("zero", 0), 0)
    for value, total in [(" 12abc", 13), ("+5", 6), ("0x10", 1), ("1.9", 2), ("\n8", 9),
                         (str(2**63 - 1), -2**63), (b"5\0junk", 6)]:
        store.set("odd", value)
        expect(store.add("odd", 1), total)


@rule
def add_refuses(store):
    """`add` on a value that is not a number disconnects the client and keeps the value."""
    for value in ["", " ", "-", "hello", str(2**63)]:
        store.set("bad", value)
        expect_raises(DistNetworkError, "", connect().add, "bad", 1)
        expect(store.get("bad"), value.encode())


@rule
def compare_set(store):
    """`compare_set` in all its cases."""
    expect(store.compare_set("cs", "", "one"), b"one")
    expect(store.compare_set("miss", "exp", "one"), b"exp")
    expect(store.check(["miss"]), False)
    expect(store.compare_set("cs", "wrong", "two"), b"one")
    expect(store.compare_set("cs", "", "two"), b"one")
    expect(store.compare_set("cs", "one", "two"), b"two")
    expect(store.compare_set("cs", "two", ""), b"")
    expect(store.compare_set("cs", "", "three"), b"three")


@rule
def check(store):
    """`check` returns True if all keys are present, also without keys."""
    store.set("present", "")
    expect(store.check(["present"]), True)
    expect(store.check(["present", "absent"]), False)
    expect(store.check([]), True)


@rule
def delete(store):
    """`delete_key` returns True if the key existed."""
    store.set("gone", "")
    expect(store.delete_key("gone"), True)
    expect(store.delete_key("gone"), False)
    expect(store.check(["gone"]), False)


@rule
def multi(store):
    """`multi_set`, `multi_get` and `append`."""
    store.multi_set(["m1", "m2"], ["a", "bb"])
    expect(store.multi_get(["m1", "m2", "m1"]), [b"a", b"bb", b"a"])
    expect(store.multi_get([]), [])
    store.append("m1", "b")
    store.append("m3", "c")
    expect(store.multi_get(["m1", "m3"]), [b"ab", b"c"])
    names = [f"mm{n}" for n in range(300)]
    store.multi_set(names, [name * 100 for name in names])
    expect(store.multi_get(names), [(name * 100).encode() for name in names])


@rule
def queues(store):
    """Queues are first in, first out, wait if asked to, and do not count as keys."""
    keys = store.num_keys()
    expect(store.queue_len("q"), 0)
    expect_raises(QueueEmptyError, "", store.queue_pop, "q", False)
    for value in ["one", "", "three"]:
        store.queue_push("q", value)
    expect(store.queue_len("q"), 3)
    expect(store.check(["q"]), True)
    expect(store.num_keys(), keys)
    expect(store.delete_key("q"), False)
    expect([store.queue_pop("q") for _ in range(3)], [b"one", b"", b"three"])
    expect(store.check(["q"]), False)
    other = connect()
    popper = in_thread(lambda: expect(other.queue_pop("q2"), b"late"))
    store.queue_push("q2", "late")
    popper.join()
    expect_raises(DistStoreError, "wait timeout", impatient().queue_pop, "q")


@rule
def list_keys(store):
    """`list_keys` lists all keys, and a PrefixStore those under its prefix."""
    store.set("listed", "")
    prefixed = PrefixStore("outer", PrefixStore("inner", store))
    prefixed.set("k", "v")
    keys = store.list_keys()
    expect({"listed", "inner/outer/k"} <= set(keys), True)
    expect(len(keys), len(set(keys)))
    expect(prefixed.list_keys(), ["k"])


@rule
def prefixes(store):
    """A PrefixStore is the same store under longer names."""
    prefixed = PrefixStore("pre/", store)
    prefixed.set("k", "v")
    expect(store.get("pre//k"), b"v")
    expect(prefixed.add("n", 2), 2)
    expect(prefixed.multi_get(["k", "n"]), [b"v", b"2"])
    expect(prefixed.compare_set("k", "v", "w"), b"w")
    expect(prefixed.delete_key("k"), True)
    expect(prefixed.num_keys(), store.num_keys())


@rule
def clones(store):
    """A clone sees the same data over its own connection."""
    clone = store.clone()
    clone.set("cloned", "1")
    expect(store.get("cloned"), b"1")


@rule
def barrier(store):
    """A barrier ends for all clients when the last arrives. Its key counts and serves once."""
    other = connect()
    first = in_thread(other.barrier, "bar", 2)
    store.barrier("bar", 2)
    first.join()
    expect(store.get("bar"), b"2")
    store.barrier("bar", 2)
    expect(store.get("bar"), b"3")
    store.barrier("bar1", 1)
    store.barrier("bar0", 0)
    expect_raises(DistStoreError, "barrier timeout", impatient().barrier, "bart", 2)
    expect(store.get("bart"), b"1")


@rule
def prefixed_barrier(store):
    """The barrier of a PrefixStore, which is made of other operations."""
    first = in_thread(PrefixStore("pb", connect()).barrier, "bar", 2)
    PrefixStore("pb", store).barrier("bar", 2)
    first.join()


@rule
def processes(store):
    """Eight processes meet at a barrier and see each other's values."""
    children = [subprocess.Popen([sys.executable, __file__, HOST, str(PORT), str(rank)]) for rank in range(8)]
    expect([child.wait(600) for child in children], [0] * 8)
    expect(store.add("ranks", 0), sum(range(8)))


@rule
def failed_compare_set_wakes_nobody(store):
    """ours: a COMPARE_SET that stores nothing does not end a wait."""
    short = impatient(timedelta(milliseconds=500))
    result = in_thread(expect_raises, DistStoreError, "wait timeout", short.wait, ["wcs"])
    while result.is_alive():
        expect(store.compare_set("wcs", "wrong", "x"), b"wrong")
    result.join()


def be_rank(rank, world_size=8):
    """The work of each process of `processes`."""
    store = connect(world_size=world_size)
    store.set(f"rank/{rank}", str(rank))
    store.add("ranks", rank)
    store.barrier("ranks-met", world_size)
    expect(store.multi_get([f"rank/{r}" for r in range(world_size)]),
           [str(r).encode() for r in range(world_size)])


def main():
    if len(sys.argv) > 3:
        return be_rank(int(sys.argv[3]))
    failures = 0
    for function in RULES:
        try:
            function(connect())
            verdict = "ok"
        except Exception as error:
            failures += 1
            verdict = f"FAILED: {type(error).__name__}: {error}"
        print(f"{function.__name__:<32} {function.__doc__} {verdict}", flush=True)
    print(f"{len(RULES) - failures} of {len(RULES)} rules hold")
    return sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
