//! Tests the ways to end a job from outside. No process of it remains.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::{BufRead, BufReader, PipeWriter, Write, pipe},
    os::{
        fd::AsRawFd,
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    process::Command,
};

use nix::sys::signal::Signal;

use crate::support::{Sandbox, is_there, keeper_of, kill};

/// The agent forwards its signal to the workers, which may save their work. It ends as soon as they have ended, although it would wait for
/// 5 minutes.
#[test]
fn workers_receive_the_signal_and_may_save() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let sandbox = Sandbox::with_standbys();
        let words = "--nproc-per-node 2 --shutdown-timeout 300 --no-python polite.sh";
        let mut agent = sandbox.ragent(words).start();
        agent.workers(2);
        agent.signal(signal);
        let name = signal.as_str().trim_start_matches("SIG");
        agent.prints(&format!("saved rank=0 on {name}"));
        agent.prints(&format!("saved rank=1 on {name}"));
        let end = agent.end();
        end.assert_code(8);
        end.assert_stderr(&["signal received; leaving the job", signal.as_str()]);
        sandbox.assert_nothing_left();
    }
}

/// A script with a data loader that prints `saved` if the loader still lives half a second after SIGTERM.
const WITH_LOADER: &str = r#"
import os, signal, subprocess, time

loader = subprocess.Popen(["sleep", "infinity"])

def save(number, frame):
    time.sleep(0.5)
    os.write(1, b"saved\n" if loader.poll() is None else b"torn\n")
    os._exit(0)

# Unlike `signal.pause`, this misses no signal that comes just before it.
signals, wakeup = os.pipe()
os.set_blocking(wakeup, False)
signal.set_wakeup_fd(wakeup)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\n")
os.read(signals, 1)
"#;

/// A data loader gets the signal when its worker has ended, so the worker can save with it. With `group`, as under torchrun, both get it at
/// once. So do they if a wrapper starts the interpreter: it may pass nothing on.
#[test]
fn data_loader_outlives_its_worker() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("loads.py"), WITH_LOADER).unwrap();
    fs::write(sandbox.path("wrapper"), "#!/bin/bash\ntrap : TERM\npython3 \"$@\"\n").unwrap();
    let wrapper = sandbox.path("wrapper");
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
    let script = sandbox.path("loads.py");
    for (flags, interpreter, printed) in [
        ("", None, "saved"),
        ("--signal-workers group", None, "torn"),
        ("", Some(&wrapper), "torn"),
    ] {
        let words = format!("--shutdown-timeout 300 {flags} {}", script.display());
        let mut agent = sandbox.ragent(&words);
        if let Some(interpreter) = interpreter {
            agent = agent.env("PYTHON_EXEC", interpreter);
        }
        let mut agent = agent.start();
        agent.prints("ready");
        agent.signal(Signal::SIGTERM);
        let end = agent.end();
        end.assert_code(8);
        assert_eq!(end.stdout, format!("ready\n{printed}\n"), "{flags} {interpreter:?}");
        sandbox.assert_nothing_left();
    }
}

/// Each process gets the signal of a stop once: also if a wrapper ends at once, and leaves the interpreter behind.
#[test]
fn signal_is_sent_once() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let script = "import os, signal\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n\
                  os.write(1, b'ready\\n')\n\
                  signal.sigwait([signal.SIGTERM])\n\
                  again = signal.sigtimedwait([signal.SIGTERM], 1)\n\
                  os.write(1, b'twice\\n' if again else b'once\\n')\n";
    fs::write(sandbox.path("counts.py"), script).unwrap();
    let program = format!("python3 {} & wait", sandbox.path("counts.py").display());
    for flags in ["", "--signal-workers group", "--signal-workers main"] {
        let words = format!("--shutdown-timeout 300 {flags} --no-python bash -c");
        let mut agent = sandbox.ragent(&words).arg(&program).start();
        agent.prints("ready");
        agent.signal(Signal::SIGTERM);
        let end = agent.end();
        end.assert_code(8);
        assert_eq!(end.stdout, "ready\nonce\n", "{flags}");
        sandbox.assert_nothing_left();
    }
}

/// A worker that waits for a process that it has started does not use up its time: after half of it, that process gets the signal as well.
#[test]
fn awaited_process_is_signaled_after_half_of_the_time() {
    if !is_there("python3") {
        return;
    }
    let sandbox = Sandbox::new();
    let script = "import os, signal, subprocess\n\
                  child = subprocess.Popen(['sleep', 'infinity'])\n\
                  def stop(number, frame):\n    \
                      os.write(1, b'ended by %d\\n' % -child.wait())\n    \
                      os._exit(0)\n\
                  signals, wakeup = os.pipe()\n\
                  os.set_blocking(wakeup, False)\n\
                  signal.set_wakeup_fd(wakeup)\n\
                  signal.signal(signal.SIGTERM, stop)\n\
                  os.write(1, b'ready\\n')\n\
                  os.read(signals, 1)\n";
    fs::write(sandbox.path("waits.py"), script).unwrap();
    let words = format!("--shutdown-timeout 12 {}", sandbox.path("waits.py").display());
    let mut agent = sandbox.ragent(&words).start();
    agent.prints("ready");
    agent.signal(Signal::SIGTERM);
    let end = agent.end();
    end.assert_code(8);
    assert_eq!(end.stdout, "ready\nended by 15\n");
}

/// Ctrl-C reaches the agent's whole process group; the workers get it once, from the agent.
#[test]
fn ctrl_c_reaches_workers_through_the_agent() {
    let sandbox = Sandbox::with_standbys();
    let words = "--shutdown-timeout 300 --no-python polite.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.worker();
    agent.signal_group(Signal::SIGINT);
    agent.prints("saved rank=0 on INT");
    let end = agent.end();
    end.assert_code(8);
    assert_eq!(end.stdout.matches("saved").count(), 1);
    sandbox.assert_nothing_left();
}

/// With `RAGENT_EXIT_WITH_PARENT`, an agent leaves its job when its parent ends, even if that was killed.
#[test]
fn agent_leaves_when_its_parent_ends() {
    let sandbox = Sandbox::new();
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let script = format!(
        "RAGENT_EXIT_WITH_PARENT=$$ {ragent} --shutdown-timeout 300 --no-python polite.sh & wait"
    );
    let mut parent = sandbox.program("/bin/bash").arg("-c").arg(script).start();
    parent.worker();
    kill(parent.pid(), Signal::SIGKILL);
    parent.prints("saved rank=0 on TERM");
    parent.wait_until_silent();
    sandbox.wait_until_nothing_left();
}

/// A value that is not the id of the parent is an error, because the parent may have ended before the agent has started.
#[test]
fn wrong_parents() {
    let sandbox = Sandbox::new();
    let start = |parent: &str| {
        sandbox.ragent("--no-python true").env("RAGENT_EXIT_WITH_PARENT", parent).run()
    };
    // This test is not process 1.
    for (parent, error) in
        [("1", "is not the parent of this process"), ("me", "is not a whole number")]
    {
        let end = start(parent);
        end.assert_code(2);
        end.assert_stderr(&[&format!("`RAGENT_EXIT_WITH_PARENT={parent}` {error}")]);
    }
}

/// Under `nohup`, an agent goes on when its terminal is gone. Its workers have SIGHUP at its default, so that it can still be used to make
/// them reload.
#[test]
fn ignored_signal_stays_ignored_by_the_agent_alone() {
    let sandbox = Sandbox::with_standbys();
    let orders = sandbox.orders(0);
    let (words, gate) = sandbox.job("--shutdown-timeout 3600 --no-python obey.sh");
    let script = format!("trap '' HUP; exec {} {words}", env!("CARGO_BIN_EXE_ragent"));
    let mut agent = sandbox.program("/bin/sh").arg("-c").arg(script).gated_by(gate).start();
    agent.worker();
    agent.signal(Signal::SIGHUP);
    orders.give("grep SigIgn /proc/$$/status");
    let line = agent.prints("SigIgn:");
    let mask = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1 << (Signal::SIGHUP as i32 - 1), 0, "{line}");
    orders.give("exit 0");
    agent.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// No process of a failed round is left when the next round begins.
#[test]
fn nothing_is_left_of_a_failed_round_when_the_next_begins() {
    if !is_there("setsid") {
        return;
    }
    let sandbox = Sandbox::with_standbys();
    let words = "--max-restarts 1 --shutdown-timeout 1 --no-python litter.sh bash -c";
    let check = r#"
        [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 9
        for environment in /proc/[0-9]*/environ; do
            text=$(tr '\0' '\n' <$environment) 2>/dev/null
            grep -qx SCRATCH=$SCRATCH <<<"$text" || continue
            grep -qx TORCHELASTIC_RESTART_COUNT=0 <<<"$text" && exit 1
        done
        echo alone"#;
    let mut agent = sandbox.ragent(words).arg(check).start();
    agent.prints("alone");
    agent.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// Closing the reader of stdout (`| head -1`) ends neither the agent nor its job.
#[test]
fn closed_stdout_does_not_end_the_agent() {
    for tee in ["-t 0", "-t 1"] {
        let sandbox = Sandbox::with_standbys();
        let (reader, writer) = pipe().unwrap();
        let words = format!("--log-dir logs {tee} --no-python flood.sh 20000 0");
        let agent = sandbox.ragent(&words).stdout(writer).start();
        let mut first = String::new();
        BufReader::new(reader).read_line(&mut first).unwrap();
        assert!(first.contains("worker rank=0"), "{first}");
        agent.end().assert_code(0);
        sandbox.assert_nothing_left();
    }
}

/// If the reader of its stderr is gone, an agent goes on, and so do its workers.
#[test]
fn closed_stderr_does_not_end_the_agent() {
    let sandbox = Sandbox::with_standbys();
    let (reader, writer) = pipe().unwrap();
    let agent = sandbox.ragent("--no-python flood.sh 20000 0").stderr(writer).start();
    let mut first = String::new();
    BufReader::new(reader).read_line(&mut first).unwrap();
    agent.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// An agent whose stderr is a full pipe without a reader still ends on a signal.
#[test]
fn full_stderr_does_not_hold_the_agent() {
    let sandbox = Sandbox::with_standbys();
    let (_reader, writer) = pipe().unwrap();
    fill(&writer);
    let (orders, lifeline) = (sandbox.orders(0), sandbox.lifeline("lifeline"));
    let words = "--shutdown-timeout 1 --no-python obey.sh";
    let mut agent = sandbox.ragent(words).hold(&lifeline).stderr(writer).start();
    agent.worker();
    // The worker releases the lifeline after the first lines.
    orders.give("seq 1000 >&2; exec 9>&-; seq 1000000 >&2");
    lifeline.wait_until_broken();
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    sandbox.assert_nothing_left();
}

/// Writes to a pipe until it is full.
fn fill(pipe: &PipeWriter) {
    // Opened a second time, so that only this descriptor is non-blocking.
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let mut pipe = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    while pipe.write(b".").is_ok() {}
}

/// Forwarded signals reach the workers, in every round, and end nothing.
#[test]
fn forwarded_signals_reach_the_workers() {
    let sandbox = Sandbox::with_standbys();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let words = "--nproc-per-node 2 --max-restarts 1 --signals-to-forward SIGUSR1,SIGUSR2 \
                 --no-python obey.sh";
    let mut agent = sandbox.ragent(words).start();
    for round in 0..2 {
        agent.workers(2);
        for order in &orders {
            order.give("trap 'echo heard USR1' USR1; trap 'echo heard USR2' USR2; echo armed");
            agent.prints("armed");
        }
        for (signal, name) in [(Signal::SIGUSR1, "USR1"), (Signal::SIGUSR2, "USR2")] {
            agent.signal(signal);
            agent.prints(&format!("heard {name}"));
            agent.prints(&format!("heard {name}"));
        }
        if round == 0 {
            orders[0].give("exit 1");
        }
    }
    for order in &orders {
        order.give("exit 0");
    }
    agent.end().assert_code(0);
}

/// A signal that the keeper gets too, as when a service manager signals every process of a unit,
/// ends neither the keeper nor the job.
#[test]
fn signals_to_the_keeper_end_nothing() {
    let sandbox = Sandbox::with_standbys();
    let orders = sandbox.orders(0);
    let mut agent = sandbox.ragent("--no-python obey.sh").start();
    agent.worker();
    let keeper = keeper_of(agent.pid());
    // All but SIGKILL and SIGSTOP, which cannot be ignored. Real-time signals start at 34.
    for signal in (1..=31).chain(34..=64).filter(|signal| ![9, 19].contains(signal)) {
        let words = [format!("-{signal}"), keeper.to_string()];
        let sent = Command::new("/bin/kill").args(words).status();
        assert!(sent.unwrap().success(), "signal {signal}");
    }
    orders.give("echo still here; exit 0");
    agent.prints("still here");
    let end = agent.end();
    end.assert_code(0);
    assert!(!end.stderr.contains("the keeper has ended"), "{}", end.stderr);
}

/// Workers start with every signal at its default, even if the agent's parent ignores some. libc reserves 32 and 33.
#[test]
fn workers_ignore_no_signal() {
    // The target `standbys` compares the signals of workers that are started from standbys.
    let sandbox = Sandbox::new();
    let python = "import os, signal, sys\n\
                  fixed = {signal.SIGKILL, signal.SIGSTOP, 32, 33}\n\
                  for number in signal.valid_signals() - fixed:\n\
                  \x20   signal.signal(number, signal.SIG_IGN)\n\
                  os.execv(sys.argv[1], sys.argv[1:])";
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let words = ["-c", python, ragent, "--no-python", "/bin/grep", "SigIgn", "/proc/self/status"];
    let start =
        words.iter().fold(sandbox.program("/usr/bin/python3"), |start, word| start.arg(word));
    let end = start.run();
    end.assert_code(0);
    let mask = end.stdout.trim().trim_start_matches("SigIgn:\t");
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask & !(0b11 << 31), 0, "{mask:x}");
}

/// A signal that a worker, or a process below it, sends to its parent has the same effect as with torchrun: the workers may save, and the
/// agent ends.
#[test]
fn signal_of_a_worker_to_its_parent() {
    for (send, name) in [
        ("kill -s TERM $PPID", "TERM"),
        ("kill -s INT $PPID", "INT"),
        ("bash -c 'kill -s TERM '$PPID'; exec sleep infinity' &", "TERM"),
        // Like a broadcast, in which the agent is the first.
        ("kill -s INT $(ps -o ppid= $PPID) && kill -s INT $PPID", "INT"),
    ] {
        let sandbox = Sandbox::with_standbys();
        // Saving takes longer than a second signal that would kill the worker.
        let script = format!(
            "trap 'sleep 1; echo saved on {name}; exit 0' {name}; {send}\nwhile :; do sleep 0.05; done"
        );
        let start = sandbox.ragent("--shutdown-timeout 300 --no-python bash -c");
        let end = start.arg(script).run();
        end.assert_code(8);
        assert_eq!(end.stdout, format!("saved on {name}\n"), "{send}: {}", end.stderr);
        end.assert_stderr(&["signal received; leaving the job", name]);
        sandbox.assert_nothing_left();
    }
}

/// SIGUSR1 ends the agent, unless it is one of the handled signals.
#[test]
fn unhandled_signal_of_a_worker_to_its_parent() {
    let sandbox = Sandbox::new();
    let start = sandbox.ragent("--no-python bash -c");
    let end = start.arg("kill -s USR1 $PPID; exec sleep infinity").run();
    assert_eq!(end.signal, Some(Signal::SIGUSR1 as i32), "{}", end.stderr);
    sandbox.assert_nothing_left();
}
