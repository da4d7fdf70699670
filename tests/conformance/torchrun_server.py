"""Runs the real torchrun, without importing torch for each run: a fork of this process is one run.

Reads one JSON object a line: the words of the command line, the environment, the folder, and files
for stdin, stdout and stderr. Answers two lines: the process id, and, when that has ended, its exit code
(below zero: the signal). The only variable that torch reads when it is imported, LOGLEVEL, is that of
this process.
"""

import json
import os
import signal
import sys

import torch.distributed.elastic.agent.server.local_elastic_agent  # noqa: F401
import torch.distributed.elastic.rendezvous.static_tcp_rendezvous  # noqa: F401
import torch.distributed.run

TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")


def become_torchrun(run):
    os.setsid()
    os.chdir(run["folder"])
    os.environ.clear()
    os.environ.update(run["environment"])
    for number, (path, flags) in enumerate(
        [
            (run["stdin"], os.O_RDONLY),
            (run["stdout"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (run["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        ]
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    if run["on_one_cpu"]:
        os.sched_setaffinity(0, {0})
    for name in run["ignored"]:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.argv = [TORCHRUN, *run["words"]]
    # The body of the script `torchrun` that pip generates from torch's entry point.
    sys.exit(torch.distributed.run.main())


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        run = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            become_torchrun(run)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
