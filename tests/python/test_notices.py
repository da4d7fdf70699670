"""`ragent-notices`: lines about the end of a machine or a job, from fake metadata servers and a fake `scontrol`."""

import argparse
import email.utils
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import types
import urllib.parse

import pytest
from support import DEADLINE, REPOSITORY, free_port, wait_until

NOTICES = REPOSITORY / "packaging/notices/ragent-notices"
SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
GROUP = "/latest/meta-data/autoscaling/target-lifecycle-state"
TOKEN = "/latest/api/token"
TTL = "X-aws-ec2-metadata-token-ttl-seconds"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
NAME = "/metadata/instance/compute/name"
EVENTS = "/metadata/scheduledevents"


class Server(http.server.ThreadingHTTPServer):
    """A metadata server. `answers` has a function for each path, which is given the request. Other paths are missing."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Request)
        self.answers = {}
        self.asked = {}
        self.changed = threading.Condition()
        self.is_closing = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def set(self, path, body, status=200, **headers):
        """Sets a constant answer."""
        body = body if isinstance(body, bytes) else body.encode()
        self.answers[path] = lambda request: request.answer(status, body, headers)

    def note(self, request):
        with self.changed:
            self.asked.setdefault(request.url.path, []).append(request)
            self.changed.notify_all()

    def waits_for(self, path, more):
        """Waits until a path was asked for `more` times from now on, and returns its newest request."""
        with self.changed:
            expected = len(self.asked.get(path, [])) + more
            found = self.changed.wait_for(lambda: len(self.asked.get(path, [])) >= expected, DEADLINE)
            assert found, f"{path} was not asked again; asked: {({path: len(them) for path, them in self.asked.items()})}"
            return self.asked[path][-1]

    def handle_error(self, request, client_address):
        """A client that has gone is no error."""

    def close(self):
        self.is_closing.set()
        with self.changed:
            self.changed.notify_all()
        self.shutdown()
        self.server_close()


class Request(http.server.BaseHTTPRequestHandler):
    """A request, which is noted before it is answered."""

    def do_GET(self):
        self.url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(self.url.query))
        self.server.note(self)
        self.server.answers.get(self.url.path, lambda request: request.answer(404, b"not found", {}))(self)

    do_PUT = do_GET

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def notices(sandbox, server):
    """Starts the program. At the end, SIGTERM must end it with code 0."""
    started = []

    def start(source, *options, env=None):
        url = [] if source == "slurm" else ["--metadata-url", server.url]
        run = sandbox.start(NOTICES, source, *url, *options, env=env)
        started.append(run)
        return run

    yield start
    for run in started:
        run.process.terminate()
        run.succeeds()


@pytest.fixture
def aws(server, notices):
    """Starts the program for AWS, with a server that wants a token."""
    server.tokens = ["token-0"]

    def token(request):
        assert request.command == "PUT" and request.headers[TTL]
        server.tokens.append(f"token-{len(server.tokens)}")
        request.answer(200, server.tokens[-1].encode(), {TTL: "3600"})

    server.answers[TOKEN] = token
    return lambda *options, **more: notices("aws", "--every", "0.1", *options, **more)


def stamp(seconds):
    """The time so many seconds ahead, as AWS writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def action(seconds, what="terminate"):
    return json.dumps({"action": what, "time": stamp(seconds)})


def assert_line(line, kind, seconds, text):
    """Compares a line. Of the seconds, some may have passed."""
    found = re.fullmatch(f"{kind} ([0-9]+) {text}\n", line)
    assert found, line
    assert max(0, seconds - 60) <= int(found[1]) <= seconds, line


# AWS


@pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
def test_spot_interruption(server, aws, what):
    """An interruption is printed when it is there, once, and again if its time becomes shorter. One that is withdrawn is forgotten."""
    run = aws()
    server.waits_for(SPOT, 3)
    assert (run.stdout, run.stderr) == ("", "")
    server.set(SPOT, action(600, what))
    assert_line(run.prints("leave"), "leave", 600, rf"spot interruption: {what} at \d\d:\d\d:\d\dZ")
    server.waits_for(SPOT, 3)
    server.set(SPOT, action(700, what))
    server.waits_for(SPOT, 3)
    assert len(run.lines["stdout"]) == 1
    server.set(SPOT, action(300, what))
    wait_until(lambda: len(run.lines["stdout"]) == 2, lambda: run.stdout)
    assert_line(run.lines["stdout"][1], "leave", 300, f"spot interruption: {what} at .*")
    server.waits_for(SPOT, 3)
    server.set(SPOT, "", 404)
    server.waits_for(SPOT, 3)
    assert len(run.lines["stdout"]) == 2
    server.set(SPOT, action(400, what))
    wait_until(lambda: len(run.lines["stdout"]) == 3, lambda: run.stdout)
    server.waits_for(SPOT, 3)
    assert (len(run.lines["stdout"]), run.stderr) == (3, "")


def test_time_that_has_passed(server, aws):
    """Seconds are never negative."""
    server.set(SPOT, action(-50))
    assert_line(aws().prints("leave"), "leave", 0, "spot interruption: .*")


def test_rebalance(server, aws):
    """A recommendation asks for a checkpoint, once for each of its times."""
    server.set(REBALANCE, json.dumps({"noticeTime": "2026-10-26T08:22:00Z"}))
    run = aws()
    assert run.prints("rebalance") == "save 0 rebalance recommendation of 08:22:00Z\n"
    server.waits_for(REBALANCE, 3)
    server.set(REBALANCE, json.dumps({"noticeTime": "2026-10-26T09:00:00Z"}))
    assert run.prints("09:00:00Z")
    server.waits_for(REBALANCE, 3)
    assert (len(run.lines["stdout"]), run.stderr) == (2, "")


def test_group(server, aws):
    """An instance that its group terminates leaves. Other states are no notice."""
    server.set(GROUP, "InService")
    run = aws("--hook", "45")
    server.waits_for(GROUP, 3)
    assert run.stdout == ""
    server.set(GROUP, "Terminated")
    assert_line(run.prints("leave"), "leave", 45, "the Auto Scaling group terminates this instance")
    server.waits_for(GROUP, 3)
    assert (len(run.lines["stdout"]), run.stderr) == (1, "")


def test_refused_token(server, aws):
    """A token that the server refuses is replaced, which is no failure."""

    def spot(request):
        if request.headers["X-aws-ec2-metadata-token"] != server.tokens[-1]:
            return request.answer(401, b"", {})
        return request.answer(200, action(600).encode(), {}) if server.is_ready else request.answer(404, b"", {})

    server.is_ready = False
    server.answers[SPOT] = spot
    run = aws()
    server.waits_for(SPOT, 3)
    assert len(server.asked[TOKEN]) == 1
    server.tokens.append("token-of-tomorrow")
    server.is_ready = True
    run.prints("leave")
    assert (len(server.asked[TOKEN]), run.stderr) == (2, "")


def test_refused_again(server, aws):
    """If the new token is refused too, the question waits, and is not repeated at once."""
    server.set(SPOT, "", 401)
    run = aws("--every", "60")
    run.prints("spot/instance-action: the server answers with 401")
    assert len(server.asked[SPOT]) == 2


def test_token_that_ends(server, aws):
    """A token is replaced before its end."""
    run = aws()
    server.waits_for(SPOT, 3)
    assert len(server.asked[TOKEN]) == 1
    run.process.terminate()
    run.succeeds()
    server.set(TOKEN, "short", **{TTL: "60"})
    run = aws()
    server.waits_for(SPOT, 3)
    assert len(server.asked[TOKEN]) >= 4
    assert run.stderr == ""


@pytest.mark.parametrize("text", ["a\r\nX-Other: 1", "", "x" * 2000])
def test_token_that_cannot_be_sent(server, aws, text):
    """A token with other characters than those of a header is not sent."""
    server.set(TOKEN, text)
    aws().prints("the server gives no token")
    assert SPOT not in server.asked


def hold(request):
    """Answers nothing."""
    request.server.is_closing.wait(DEADLINE)


def dribble(request):
    """Sends a header that does not end, byte by byte."""
    request.send_response(200)
    request.flush_headers()
    while not request.server.is_closing.wait(0.05):
        request.wfile.write(b"x")


def flood(request):
    """Sends more than the program reads."""
    request.answer(200, b"[" * 70_000, {})


def flood_of_headers(request):
    request.answer(200, b"{}", {f"X-{number}": "x" * 10_000 for number in range(10)})


def hang_up(request):
    """Closes the connection without an answer."""


def constant(body, status=200):
    return lambda request: request.answer(status, body, {})


BAD = {
    "503": (constant(b"busy", 503), "the server answers with 503"),
    "redirect": (constant(b"", 302), "the server answers with 302"),
    "no answer": (hold, "no complete answer in time"),
    "slow answer": (dribble, "no complete answer in time"),
    "hang up": (hang_up, "instance-action: "),
    "other protocol": (lambda request: request.wfile.write(b"SSH-2.0\r\n\r\n"), "instance-action: SSH-2.0"),
    "garbage": (constant(b"<html>"), "not a JSON object"),
    "other JSON": (constant(b"[1, 2]"), "not a JSON object"),
    "deep JSON": (constant(b"[" * 60_000), "not a JSON object"),
    "not UTF-8": (constant(b'{"action": "\xff\xfe", "time": "\xc3"}'), "no known action, or no time"),
    "no time": (constant(b'{"action": "terminate", "time": 17}'), "no known action, or no time"),
    "no action": (constant(b'{"action": ["terminate"], "time": "2026-10-26T08:22:00Z"}'), "no known action, or no time"),
    "flood": (flood, "more than 65536 bytes"),
    "flood of headers": (flood_of_headers, "instance-action: "),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_answers(server, aws, name):
    """A bad answer is no notice. It is printed to stderr once, delays no other question, and a good answer later is taken."""
    answer, text = BAD[name]
    server.answers[SPOT] = answer
    server.set(GROUP, "Terminated")
    run = aws()
    run.prints(text)
    run.prints("leave")
    server.waits_for(SPOT, 2)
    lines = run.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ragent-notices: failed to ask for notices: "), lines
    server.set(SPOT, action(600))
    run.prints("leave 5")
    assert len(run.lines["stdout"]) == 2


def test_failures_slow_the_questions_down(server, aws):
    """After each failure the pause is longer. After an answer, the first failure counts as the first again."""
    times = []

    def spot(request):
        times.append(time.monotonic())
        request.answer(404 if len(times) == 6 else 503, b"", {})

    server.answers[SPOT] = spot
    aws()
    server.waits_for(SPOT, 8)
    pauses = [after - before for before, after in zip(times, times[1:])]
    # The pause after failure N is from half to all of 0.1 s x 2^N. A busy machine only adds to it.
    assert all(pause >= 0.05 * 2**number for number, pause in enumerate(pauses[:5], 1)), pauses
    # Without the answer it would be at least 3.2 s.
    assert pauses[6] < 3.2, pauses


def test_no_server(sandbox):
    """Without a server the program waits for one, and the message names what a container needs."""
    url = f"http://127.0.0.1:{free_port()}"
    run = sandbox.start(NOTICES, "aws", "--every", "0.1", "--metadata-url", url)
    run.prints(f"{url}/latest/api/token: [Errno 111] Connection refused (in a container, the hop limit")
    run.process.terminate()
    run.succeeds()
    assert run.stdout == ""


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_proxies_are_not_used(server, aws, name):
    """Proxies of the environment are not asked."""
    server.set(SPOT, action(600))
    run = aws(env={name: f"http://127.0.0.1:{free_port()}", "no_proxy": ""})
    run.prints("leave")
    assert run.stderr == ""


def test_prefix_of_the_address(server, aws, sandbox):
    """The address may have a path, which is put in front of all others."""
    server.answers[f"/relay{TOKEN}"] = server.answers[TOKEN]
    server.set(f"/relay{SPOT}", action(600))
    run = sandbox.start(NOTICES, "aws", "--metadata-url", f"{server.url}/relay/")
    run.prints("leave")
    run.process.terminate()
    run.succeeds()


# Google Cloud


class Value:
    """A value of Google's metadata server, whose questions wait for a change."""

    def __init__(self, server, path, value):
        self.server, self.value, self.version = server, value, 1
        server.answers[path] = self.answer

    def change(self, value):
        with self.server.changed:
            self.value, self.version = value, self.version + 1
            self.server.changed.notify_all()

    def answer(self, request):
        if request.headers["Metadata-Flavor"] != "Google":
            return request.answer(403, b"", {})
        with self.server.changed:
            if request.query.get("wait_for_change") == "true":
                is_new = lambda: self.server.is_closing.is_set() or request.query.get("last_etag") != f"tag&{self.version}"
                self.server.changed.wait_for(is_new, DEADLINE)
            body, tag = self.value.encode(), f"tag&{self.version}"
        return request.answer(200, body, {"ETag": tag, "Metadata-Flavor": "Google"})


@pytest.fixture
def gcp(server, notices):
    """Starts the program for Google Cloud."""
    server.preempted = Value(server, PREEMPTED, "FALSE")
    server.maintenance = Value(server, MAINTENANCE, "NONE")
    return lambda *options: notices("gcp", *options)


def test_preemption(server, gcp):
    """A change arrives by the question that waits for it."""
    run = gcp()
    # The second question, which waits.
    wait_until(lambda: len(server.asked.get(PREEMPTED, [])) == 2, lambda: server.asked)
    query = server.asked[PREEMPTED][1].query
    assert query == {"wait_for_change": "true", "timeout_sec": "60", "last_etag": "tag&1"}
    # It may wait for longer than other questions.
    asked_at = time.monotonic()
    wait_until(lambda: time.monotonic() > asked_at + 2.5, lambda: "the clock stands still")
    assert (run.stdout, run.stderr, len(server.asked[PREEMPTED])) == ("", "", 2)
    server.preempted.change("TRUE")
    assert_line(run.prints("leave"), "leave", 30, "this VM is preempted")
    server.preempted.change("TRUE")
    server.waits_for(PREEMPTED, 1)
    assert (len(run.lines["stdout"]), run.stderr) == (1, "")


def test_host_maintenance(server, gcp):
    """Maintenance that ends the VM is a notice, and a migration is not. After NONE, the next maintenance is another notice."""
    run = gcp("--maintenance", "3600", "--preemption", "150")
    server.waits_for(MAINTENANCE, 1)
    for value in ["MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE", "NONE", "TERMINATE_ON_HOST_MAINTENANCE"]:
        assert len(run.lines["stdout"]) <= 1
        server.maintenance.change(value)
        # This question has the tag of the value, so its line was printed.
        tag = f"tag&{server.maintenance.version}"
        wait_until(lambda: server.asked[MAINTENANCE][-1].query.get("last_etag") == tag, lambda: run.stderr)
    assert len(run.lines["stdout"]) == 2
    for line in run.lines["stdout"]:
        assert_line(line, "leave", 3600, "host maintenance terminates this VM")
    server.preempted.change("TRUE")
    assert_line(run.prints("preempted"), "leave", 150, "this VM is preempted")


def test_value_at_the_start(server, gcp):
    """A value that is there at the start is a notice."""
    server.preempted.change("TRUE")
    assert_line(gcp().prints("leave"), "leave", 30, "this VM is preempted")


def test_only_an_answer_counts(server, gcp):
    """An error neither is a notice nor withdraws one."""
    server.preempted.change("TRUE")
    run = gcp()
    run.prints("leave")
    # Once with the tag, and once without.
    server.answers[PREEMPTED] = hang_up
    server.preempted.change("TRUE")
    run.prints(f"{PREEMPTED}: Remote end closed connection")
    server.waits_for(PREEMPTED, 2)
    server.set(PREEMPTED, "TRUE", 503)
    run.prints("preempted: the server answers with 503")
    server.set(PREEMPTED, "maybe")
    run.prints("preempted: the answer is not one of FALSE, TRUE")
    server.set(PREEMPTED, "TRUE")
    server.waits_for(PREEMPTED, 3)
    assert (len(run.lines["stdout"]), len(run.lines["stderr"])) == (1, 3), run.stderr


def test_server_that_does_not_wait(server, gcp):
    """If answers come at once, or without a tag, there is one question a second."""
    times = []

    def preempted(request):
        times.append(time.monotonic())
        request.answer(200, b"FALSE", {"ETag": "same"} if len(times) < 3 else {})

    server.answers[PREEMPTED] = preempted
    gcp()
    server.waits_for(PREEMPTED, 5)
    assert all(after - before > 0.4 for before, after in zip(times, times[1:])), times


# Azure


def event(kind, seconds=None, resources=("gpu_3",), status="Scheduled", **more):
    at = "" if seconds is None else email.utils.formatdate(time.time() + seconds, usegmt=True)
    fields = {"EventId": f"{kind}-{seconds}-{status}", "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(resources),
              "EventStatus": status, "NotBefore": at, "Description": "Host server is undergoing maintenance.", "EventSource": "Platform",
              "DurationInSeconds": -1}
    return {**fields, **more}


@pytest.fixture
def azure(server, notices):
    """Starts the program for Azure, as machine `GPU_3`."""

    def needs_header(answer):
        return lambda request: answer(request) if request.headers["Metadata"] == "true" else request.answer(400, b"", {})

    def name(request):
        assert request.query["format"] == "text"
        request.answer(200, b"GPU_3\n", {})

    def set_events(*events, **more):
        body = json.dumps({"DocumentIncarnation": 1, "Events": events, **more}).encode()
        server.answers[EVENTS] = needs_header(constant(body))

    server.answers[NAME] = needs_header(name)
    server.set_events = set_events
    set_events()
    return lambda *options: notices("azure", "--every", "0.1", *options)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_events(server, azure, kind):
    """An event of this machine is printed once, with the seconds until it may begin."""
    run = azure()
    server.waits_for(EVENTS, 2)
    assert run.stdout == ""
    server.set_events(event(kind, 600))
    assert_line(run.prints("leave"), "leave", 600, f"Azure: {kind}: Host server is undergoing maintenance.")
    server.waits_for(EVENTS, 3)
    assert (len(run.lines["stdout"]), run.stderr, len(server.asked[NAME])) == (1, "", 1)


def test_events_that_are_no_notice(server, azure):
    """Events of other machines, far ahead, over, harmless or of unknown types are ignored."""
    server.set_events(
        event("Preempt", 30, resources=["gpu_4", "gpu_33"]),
        event("Preempt", 30, resources=[]),
        event("Preempt", 30, Resources="gpu_3"),
        event("Preempt", 30, Resources=7),
        event("Redeploy", 86_400),
        event("Reboot", status="Started"),
        event("Redeploy", status="Started"),
        event("Freeze", status="Started"),
        event("Freeze", 600, DurationInSeconds=0),
        event("Explode", 30),
        "Preempt",
        None,
    )
    run = azure()
    server.waits_for(EVENTS, 3)
    assert (run.stdout, run.stderr) == ("", "")


def test_freeze(server, azure):
    """A pause asks for a checkpoint."""
    server.set_events(event("Freeze", 600, DurationInSeconds=5))
    assert azure().prints("Freeze") == "save 0 Azure: Freeze: Host server is undergoing maintenance.\n"


def test_event_without_time(server, azure):
    """A preemption that has begun has no time. It counts as 30 s ahead."""
    server.set_events(event("Preempt", status="Started"))
    run = azure()
    assert_line(run.prints("leave"), "leave", 30, "Azure: Preempt: .*")
    server.waits_for(EVENTS, 3)
    assert (len(run.lines["stdout"]), run.stderr) == (1, "")


def test_event_that_is_approved(server, azure):
    """An event that begins earlier than announced is printed again."""
    server.set_events(event("Terminate", 600, EventId="A"))
    run = azure()
    run.prints("leave 5")
    server.set_events(event("Terminate", EventId="A", status="Started"))
    wait_until(lambda: len(run.lines["stdout"]) == 2, lambda: run.stdout)
    assert_line(run.lines["stdout"][1], "leave", 30, "Azure: Terminate: .*")


def test_event_that_comes_near(server, azure):
    """An event that was far ahead becomes a notice."""
    soon = event("Reboot", 86_400, NotBefore=email.utils.formatdate(time.time() + 102, usegmt=True))
    server.set_events(soon)
    run = azure("--before", "100")
    server.waits_for(EVENTS, 2)
    assert_line(run.prints("leave"), "leave", 100, "Azure: Reboot: .*")
    assert len(run.lines["stdout"]) == 1


def test_foreign_text(server, azure):
    """The text of a line is printable, on one line, and short."""
    server.set_events(event("Preempt", 30, Description="one\nleave 0 two\x1b[2J\t\ud800\u202e " + "ü" * 500))
    run = azure()
    line = run.prints("leave")
    assert re.match(r"leave [0-9]+ Azure: Preempt: one leave 0 two\?\[2J \?\? üü", line), line
    assert len(line.split(" ", 2)[2].rstrip("\n").encode()) <= 200
    assert len(run.lines["stdout"]) == 1


def test_first_answer_is_late(server, azure):
    """The first answer may take two minutes, as the service is switched on by the question. Later ones may not."""
    waits = threading.Event()

    def late(request):
        request.server.is_closing.wait(3)
        waits.set()
        server.answers[EVENTS] = hold
        request.answer(200, json.dumps({"Events": [event("Preempt", 60)]}).encode(), {})

    server.answers[EVENTS] = late
    run = azure()
    run.prints("leave")
    assert waits.is_set() and run.stderr == ""
    run.prints("no complete answer in time")


# Slurm


class Slurm:
    """A fake `scontrol`, which prints the file `record`, and appends its arguments to the file `calls`."""

    PRINTS_RECORD = 'echo "$SLURM_TIME_FORMAT $*" >>calls; cat record'

    def __init__(self, sandbox, notices):
        self.folder = sandbox.path / "slurm"
        self.folder.mkdir()
        self.notices = notices
        self.env = {"PATH": f"{self.folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "47", "SLURM_TIME_FORMAT": "relative"}
        self.script(self.PRINTS_RECORD)

    def script(self, text):
        scontrol = self.folder / "new"
        scontrol.write_text(f"#!/bin/sh\ncd {self.folder}\n{text}\n")
        scontrol.chmod(0o755)
        scontrol.rename(self.folder / "scontrol")

    def set_end(self, end, job=47):
        new = self.folder / "new-record"
        new.write_text(self.record(end, job))
        new.rename(self.folder / "record")

    @staticmethod
    def record(end, job):
        return (f"JobId={job} JobName=train UserId=me(1000) JobState=RUNNING RunTime=00:10:00 TimeLimit=UNKNOWN TimeMin=N/A "
                f"SubmitTime=1795745292 StartTime=1795745292 EndTime={end} Deadline=N/A SuspendTime=None NodeList=n[1-4]\n")

    def calls(self):
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for_calls(self, more):
        expected = len(self.calls()) + more
        wait_until(lambda: len(self.calls()) >= expected, lambda: f"only {self.calls()}")

    def start(self, *options, **env):
        return self.notices("slurm", "--every", "0.1", *options, env={**self.env, **env})


@pytest.fixture
def slurm(sandbox, notices):
    return Slurm(sandbox, notices)


def test_limit_of_the_controller(slurm):
    """The notice comes `--before` seconds ahead of the end that `scontrol` shows, once."""
    slurm.set_end(int(time.time()) + 302)
    run = slurm.start("--before", "300")
    slurm.wait_for_calls(1)
    assert_line(run.prints("end"), "end", 300, "Slurm's time limit")
    slurm.wait_for_calls(3)
    assert (len(run.lines["stdout"]), run.stderr) == (1, "")
    assert slurm.calls()[0] == "%s --oneliner show job 47"


def test_limit_of_the_environment(slurm):
    """The end in the environment counts until the controller is asked, and if it cannot be."""
    slurm.script("echo called >>calls; exit 1")
    run = slurm.start(SLURM_JOB_END_TIME=str(int(time.time()) + 110))
    assert_line(run.prints("end "), "end", 110, "Slurm's time limit")
    run.prints("it exits with 1; the time limit counts as unchanged")
    slurm.wait_for_calls(3)
    assert (len(run.lines["stdout"]), len(run.lines["stderr"])) == (1, 1)


def test_limit_without_controller(slurm):
    """Where `scontrol` is missing, as in many containers, the end in the environment counts."""
    (slurm.folder / "scontrol").unlink()
    run = slurm.start(SLURM_JOB_END_TIME=str(int(time.time()) + 122), PATH=str(slurm.folder))
    assert_line(run.prints("end "), "end", 120, "Slurm's time limit")
    run.prints("failed to run `scontrol --oneliner show job 47`: No such file or directory; the time limit counts as unchanged")


def test_extended_limit(slurm):
    """A limit that is extended before the notice moves it."""
    slurm.set_end("SOON")
    # The notice would come 3 s after the first call.
    slurm.script('echo first >>calls; sed "s/SOON/$(($(date +%s) + 123))/" record')
    run = slurm.start()
    slurm.wait_for_calls(1)
    due = time.time() + 3
    slurm.set_end(int(due) + 5000)
    slurm.script(slurm.PRINTS_RECORD)
    wait_until(lambda: time.time() > due + 1, lambda: "the clock stands still")
    slurm.wait_for_calls(2)
    assert run.stdout == ""
    slurm.set_end(int(time.time()) + 30)
    assert_line(run.prints("end"), "end", 30, "Slurm's time limit")
    assert len(run.lines["stdout"]) == 1


def test_shortened_limit(slurm):
    """A limit that becomes shorter after the notice is printed again."""
    slurm.set_end(int(time.time()) + 110)
    run = slurm.start()
    run.prints("end 1")
    slurm.set_end(int(time.time()) + 20)
    wait_until(lambda: len(run.lines["stdout"]) == 2, lambda: run.stdout)
    assert_line(run.lines["stdout"][1], "end", 20, "Slurm's time limit")


class Clock:
    """The module `time` of the program, in which time passes only by waiting."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 1795745292


def test_times_of_the_questions(monkeypatch):
    """The controller is asked every few minutes, and a last time within the minute before the notice, by each node at another time."""
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    program = types.ModuleType("ragent_notices")
    exec(compile(NOTICES.read_text(), NOTICES, "exec"), program.__dict__)
    last = set()
    for _ in range(200):
        program.time = clock = Clock()
        due = clock.now + 3600
        asked = []

        def ask():
            asked.append(clock.now)
            return clock.time() - clock.now + due + 120

        slurm = program.Slurm(argparse.Namespace(before=120, every=300))
        monkeypatch.setattr(slurm, "ask", ask)
        found, wait = slurm.limit()
        while not found:
            assert wait > 0
            clock.now += wait
            found, wait = slurm.limit()
        assert clock.now == pytest.approx(due, abs=0.1)
        pauses = [after - before for before, after in zip(asked, asked[1:])]
        assert all(pause <= 300 for pause in pauses) and all(pause >= 150 for pause in pauses[:-1]), asked
        assert 5 <= due - asked[-1] <= 60, asked
        last.add(int(due - asked[-1]))
    assert len(last) > 20


def test_no_limit(slurm):
    """A job without a limit gets no notice, and one message."""
    slurm.set_end("Unknown")
    run = slurm.start(SLURM_JOB_END_TIME="")
    run.prints("no time limit of the Slurm job is known")
    slurm.wait_for_calls(3)
    assert (run.stdout, len(run.lines["stderr"])) == ("", 1)


def test_no_job(slurm):
    """Outside of a job there is no notice, and one message."""
    run = slurm.start(SLURM_JOB_ID="")
    run.prints("SLURM_JOB_ID is not set: this is not a job of Slurm; trying again")
    assert (run.stdout, slurm.calls()) == ("", [])


def test_task_of_an_array(slurm):
    """Of an array, only the record of the own job counts."""
    far, near = int(time.time()) + 5000, int(time.time()) + 60
    (slurm.folder / "record").write_text("".join(slurm.record(end, job) for end, job in [(far, 48), (near, 47), (far, 470)]))
    run = slurm.start(SLURM_ARRAY_JOB_ID="40", SLURM_ARRAY_TASK_ID="7")
    assert_line(run.prints("end"), "end", 60, "Slurm's time limit")
    assert slurm.calls()[0] == "%s --oneliner show job 40_7"


def test_other_output(slurm):
    """Output without the job is a failure, and the next one is read."""
    (slurm.folder / "record").write_bytes(b"\xff JobId=47 EndTime=soon \n" + slurm.record(9, 48).encode())
    run = slurm.start()
    run.prints("`scontrol show job 47` shows no end of the job")
    slurm.set_end(int(time.time()) + 60)
    run.prints("end 5")
    assert len(run.lines["stdout"]) == 1


def test_endless_output(slurm, sandbox):
    """Output without an end is not kept, and its program is ended."""
    slurm.script("yes | head -c 100000; exec sleep 1000")
    run = slurm.start()
    run.prints("the answer has more than 65536 bytes")
    slurm.script("echo called >>calls; exit 1")
    slurm.wait_for_calls(1)
    assert not [command for command in sandbox.processes().values() if command.startswith("sleep")]


def test_hanging_controller(slurm, sandbox):
    """SIGTERM ends the program and the `scontrol` that it waits for."""
    slurm.script("echo called >>calls; exec sleep 1000")
    run = slurm.start()
    slurm.wait_for_calls(1)
    run.process.terminate()
    run.succeeds()
    sandbox.wait_until_nothing_left()


# The process


def test_wrong_arguments(sandbox):
    """Wrong arguments exit with 2, and a message names what is expected."""
    for words, text in [
        ([], "required: aws|gcp|azure|slurm"),
        (["oracle"], "invalid choice: 'oracle'"),
        (["aws", "--metadata-url", "https://127.0.0.1"], "'https://127.0.0.1' is not of the form http://HOST[:PORT]"),
        (["aws", "--metadata-url", "http://[::1"], "is not of the form http://HOST[:PORT]"),
        (["aws", "--metadata-url", "http://a\r\nb"], "is not of the form http://HOST[:PORT]"),
        (["aws", "--every", "0"], "'0' is not a number of seconds from 0.1 to 3600"),
        (["slurm", "--before", "-1"], "'-1' is not a whole number of seconds"),
        (["slurm", "--metadata-url", "http://127.0.0.1"], "unrecognized arguments"),
    ]:
        run = sandbox.run(NOTICES, *words)
        assert run.code == 2 and text in run.stderr, run.stderr
        assert run.stdout == ""


def test_program_is_executable():
    """The file is a program, and its help names the sources."""
    end = subprocess.run([NOTICES, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert "Slurm" in end.stdout and "AWS" in end.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(server, notices, number):
    """SIGTERM ends the program with code 0 although questions are open. Ctrl-C ends it too. Nothing is printed."""
    Value(server, PREEMPTED, "FALSE")
    Value(server, MAINTENANCE, "NONE")
    run = notices("gcp")
    wait_until(lambda: len(server.asked.get(PREEMPTED, [])) == 2, lambda: server.asked)
    run.process.send_signal(number)
    run.finish()
    assert (run.code, run.stdout, run.stderr) == (0 if number == signal.SIGTERM else -number, "", "")
    # The fixture expects 0.
    run.process.returncode = 0


@pytest.mark.parametrize("has_notice", [False, True])
def test_closed_output(sandbox, server, has_notice):
    """The program ends without a message once its output has no reader, also if there is no notice."""
    Value(server, MAINTENANCE, "NONE")
    preempted = Value(server, PREEMPTED, "FALSE")
    reader, writer = os.pipe()
    run = sandbox.start(NOTICES, "gcp", "--metadata-url", server.url, stdout=writer)
    os.close(writer)
    wait_until(lambda: len(server.asked.get(PREEMPTED, [])) == 2, lambda: server.asked)
    os.close(reader)
    if has_notice:
        preempted.change("TRUE")
    run.succeeds()
    assert run.stderr == ""


def test_no_output(sandbox, server):
    """A program without stdout and stderr ends at once."""
    command = [str(NOTICES), "aws", "--metadata-url", server.url]
    run = sandbox.start("-c", f"import os; os.close(1); os.close(2); os.execv({command[0]!r}, {command!r})")
    run.succeeds()
    assert not server.asked


def test_no_output_for_errors(sandbox, server):
    """Without stderr, a failure is not printed, and the questions go on."""
    server.set(TOKEN, "token")
    server.set(SPOT, "", 503)
    command = [str(NOTICES), "aws", "--every", "0.1", "--metadata-url", server.url]
    run = sandbox.start("-c", f"import os; os.close(2); os.execv({command[0]!r}, {command!r})")
    server.waits_for(SPOT, 2)
    server.set(SPOT, action(600))
    assert_line(run.prints("leave"), "leave", 600, "spot interruption: .*")
    run.process.terminate()
    run.succeeds()
