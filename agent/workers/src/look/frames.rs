//! Reads stacks of Python, as py-spy and `faulthandler` print them, and finds what a worker does.
//!
//! Only the main thread counts. Text of both is not trusted.

use ragent_proto::printable_line;
use ragent_rendezvous::message::Activity;
use serde::Deserialize;

use crate::limits;

/// A function of a stack, and the line that it executes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Frame {
    pub(crate) function: String,
    /// The path of its file.
    pub(crate) file: String,
    pub(crate) line: u32,
}

/// The stack of the main thread of a process, the innermost function first.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Stack(pub(crate) Vec<Frame>);

/// A thread in the output of `py-spy dump --json`.
#[derive(Deserialize)]
struct SpiedThread {
    pid: Option<u64>,
    os_thread_id: Option<u64>,
    thread_name: Option<String>,
    #[serde(default)]
    frames: Vec<SpiedFrame>,
}

/// A frame in the output of `py-spy dump --json`.
#[derive(Deserialize)]
struct SpiedFrame {
    name: String,
    filename: String,
    short_filename: Option<String>,
    line: i64,
}

/// Reads the output of `py-spy dump --json`. Returns the text for people, and the stack of the main thread.
pub(crate) fn of_py_spy(json: &[u8]) -> Option<(String, Stack)> {
    let threads: Vec<SpiedThread> = serde_json::from_slice(json).ok()?;
    let mut text = String::new();
    for thread in &threads {
        let name = thread.thread_name.as_deref().unwrap_or("unnamed");
        let number = thread.os_thread_id.map(|id| format!(" {id}")).unwrap_or_default();
        text.push_str(&format!("Thread{number}: {}\n", printable_line(name)));
        for SpiedFrame { name, filename, short_filename, line } in &thread.frames {
            let file = short_filename.as_deref().unwrap_or(filename);
            text.push_str(&format!(
                "    {} ({}:{line})\n",
                printable_line(name),
                printable_line(file)
            ));
        }
    }
    let is_main = |thread: &&SpiedThread| match (thread.os_thread_id, thread.pid) {
        (Some(thread), Some(process)) => thread == process,
        (Some(_), None) | (None, _) => thread.thread_name.as_deref() == Some("MainThread"),
    };
    let main = threads.iter().find(is_main).or_else(|| threads.last());
    let frames = main.into_iter().flat_map(|thread| &thread.frames);
    let frames = frames.map(|frame| Frame {
        function: printable_line(&frame.name),
        file: printable_line(&frame.filename),
        line: u32::try_from(frame.line).unwrap_or_default(),
    });
    Some((text, Stack(frames.take(limits::FRAMES_READ).collect())))
}

/// Reads the output of `faulthandler.dump_traceback`, in which the main thread comes last. Returns `None` if it
/// contains no frames.
pub(crate) fn of_faulthandler(text: &str) -> Option<Stack> {
    let mut frames = Vec::new();
    for line in text.lines() {
        if line.starts_with("Thread ") || line.starts_with("Current thread ") {
            frames.clear();
        } else if let Some(frame) = frame_of_faulthandler(line)
            && frames.len() < limits::FRAMES_READ
        {
            frames.push(frame);
        }
    }
    (!frames.is_empty()).then_some(Stack(frames))
}

/// Reads a line such as `  File "/a/t.py", line 7 in train`.
fn frame_of_faulthandler(line: &str) -> Option<Frame> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    let line = line.parse().ok()?;
    Some(Frame { function: printable_line(function), file: printable_line(file), line })
}

impl Stack {
    /// Returns the activity, by the innermost function that belongs to `torch.distributed`.
    pub(crate) fn activity(&self) -> Activity {
        self.call().map_or(Activity::Other, |(_, activity)| activity)
    }

    /// Returns the place in the worker's own script, such as `load_batch at data.py:88`. In a call of
    /// `torch.distributed`, the function is that one.
    pub(crate) fn line(&self) -> Option<String> {
        let Self(frames) = self;
        let call = self.call();
        let outer = call.map_or(&frames[..], |(place, _)| &frames[place..]);
        // A job may run a program that is installed.
        let own = outer.iter().find(|frame| frame.is_own());
        let own = own
            .or_else(|| outer.iter().find(|frame| !frame.is_of_torch()))
            .or_else(|| outer.first());
        let Frame { function, file, line } = own?;
        let function = call.map_or(function, |(place, _)| &frames[place].function);
        let file = file.rsplit('/').next().unwrap_or(file);
        Some(format!("{function} at {file}:{line}"))
    }

    /// Returns the innermost function that waits in `torch.distributed`, and how. Layers such as FSDP belong to the
    /// same package, and call the script: so a function counts only if it has not called the script, and by its name
    /// or because it is the innermost of all. Collectives of DDP run inside of `backward`, which waits for them.
    fn call(&self) -> Option<(usize, Activity)> {
        let mut frames = self.0.iter().take_while(|frame| !frame.is_own()).enumerate();
        frames.find_map(|(place, frame)| {
            let is_inside = frame.is_distributed();
            let may_wait = frame.is_of_torch() && OUTSIDE.contains(&frame.function.as_str());
            let activity =
                if is_inside { kind(&frame.function) } else { may_wait.then_some(Activity::Wait) };
            let is_innermost = is_inside && place == 0;
            let activity = activity.or_else(|| is_innermost.then_some(Activity::Wait));
            activity.map(|activity| (place, activity))
        })
    }
}

/// Folders and beginnings of files in torch's package.
const OF_TORCH: [&str; 7] = ["_", "autograd/", "cuda/", "distributed/", "nn/", "optim/", "utils/"];

impl Frame {
    /// Returns true if it belongs to torch, installed or built in its sources. A folder of the script may have the same name.
    fn is_of_torch(&self) -> bool {
        let mut parts = self.file.rsplitn(2, "torch/");
        let (Some(rest), Some(before)) = (parts.next(), parts.next()) else { return false };
        let is_package = before.is_empty() || before.ends_with('/');
        is_package
            && (before.ends_with("-packages/") || OF_TORCH.iter().any(|it| rest.starts_with(it)))
    }

    /// Returns true if it belongs to `torch.distributed`, without the launcher and its decorators.
    fn is_distributed(&self) -> bool {
        let mut parts = self.file.rsplitn(2, "torch/distributed/");
        match (parts.next(), parts.next()) {
            (Some(rest), Some(before)) => {
                let is_package = before.is_empty() || before.ends_with('/');
                is_package && !rest.starts_with("elastic/") && !rest.starts_with("launcher/")
            }
            _ => false,
        }
    }

    /// Returns true if it belongs to the script, not to an installed package or to Python.
    fn is_own(&self) -> bool {
        let is_installed = ["/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python"]
            .iter()
            .any(|folder| self.file.contains(folder));
        !is_installed && !self.file.starts_with('<') && !self.is_of_torch()
    }
}

/// Functions of `torch.distributed` whose names begin like this are collectives, or send data.
const COLLECTIVES: [&str; 12] = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "monitored_barrier",
    "reduce",
    "scatter",
];

/// The functions that send data between two ranks.
const POINT_TO_POINT: [&str; 4] = ["recv", "send", "recv_object_list", "send_object_list"];

/// Functions of `torch.distributed` that wait for an operation or for the store.
const WAITS: [&str; 9] = [
    "destroy_process_group",
    "init_process_group",
    "new_group",
    "rendezvous",
    "synchronize",
    "wait",
    "wait_tensor",
    "_create_c10d_store",
    "_store_based_barrier",
];

/// Functions in other parts of torch that wait for collectives of other threads.
const OUTSIDE: [&str; 3] = ["backward", "grad", "synchronize"];

/// Returns the activity of a function of `torch.distributed`; `None` if it may compute.
fn kind(function: &str) -> Option<Activity> {
    let is_collective = COLLECTIVES.iter().any(|name| function.starts_with(name))
        || function.starts_with("_all_gather_base")
        || function.starts_with("_reduce_scatter_base")
        || POINT_TO_POINT.contains(&function);
    if is_collective {
        Some(Activity::Collective)
    } else {
        WAITS.contains(&function).then_some(Activity::Wait)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TORCH: &str = "/v/lib/python3.11/site-packages/torch/distributed";

    fn frames(of: &[(&str, &str, u32)]) -> Stack {
        let frame = |(function, file, line): &(&str, &str, u32)| Frame {
            function: (*function).to_owned(),
            file: file.replace("TORCH", TORCH),
            line: *line,
        };
        Stack(of.iter().map(frame).collect())
    }

    fn found(of: &[(&str, &str, u32)]) -> (Activity, Option<String>) {
        let stack = frames(of);
        (stack.activity(), stack.line())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    /// A worker in a collective is shown with the function of torch, and the line of its script that calls it.
    #[test]
    fn collective_has_the_line_of_the_script() {
        let stack = [
            ("all_reduce", "TORCH/distributed_c10d.py", 4181),
            ("wrapper", "TORCH/c10d_logger.py", 83),
            ("train", "/home/a/t.py", 7),
            ("inner", "/usr/lib/python3.11/contextlib.py", 81),
            ("<module>", "/home/a/t.py", 15),
        ];
        assert_eq!(found(&stack), (Activity::Collective, text("all_reduce at t.py:7")));
        let stack = [
            ("_store_based_barrier", "TORCH/distributed_c10d.py", 900),
            ("init_process_group", "TORCH/distributed_c10d.py", 1700),
            ("<module>", "/home/a/t.py", 3),
        ];
        assert_eq!(found(&stack), (Activity::Wait, text("_store_based_barrier at t.py:3")));
        let stack = [("all_reduce", "TORCH/distributed_c10d.py", 4181), ("f", "/a/torch/t.py", 9)];
        assert_eq!(found(&stack), (Activity::Collective, text("all_reduce at t.py:9")));
        let stack = [("_env_rendezvous_handler", "TORCH/rendezvous.py", 9), ("f", "/a/t.py", 3)];
        assert_eq!(found(&stack), (Activity::Wait, text("_env_rendezvous_handler at t.py:3")));
    }

    /// The collectives of DDP run in `backward`, so a rank in it waits for others, unless torch has called the script.
    #[test]
    fn backward_waits_for_collectives() {
        const PACKAGE: &str = "/v/lib/python3.11/site-packages/torch";
        let (graph, init) =
            (format!("{PACKAGE}/autograd/graph.py"), format!("{PACKAGE}/autograd/__init__.py"));
        let waits = [
            ("_engine_run_backward", graph.as_str(), 824),
            ("backward", init.as_str(), 347),
            ("<module>", "/home/a/t.py", 18),
        ];
        assert_eq!(found(&waits), (Activity::Wait, text("backward at t.py:18")));
        let hook = [[("hook", "/home/a/t.py", 3)].as_slice(), &waits].concat();
        assert_eq!(found(&hook), (Activity::Other, text("hook at t.py:3")));
    }

    /// A worker elsewhere is shown with the innermost line of its script, also below a layer of torch that has called it.
    #[test]
    fn other_work_has_its_own_line() {
        let stack = [
            ("read", "/usr/lib/python3.11/codecs.py", 300),
            ("load", "/v/lib/python3.11/site-packages/datasets/load.py", 5),
            ("load_batch", "/home/a/data.py", 88),
            ("<module>", "/home/a/t.py", 5),
        ];
        assert_eq!(found(&stack), (Activity::Other, text("load_batch at data.py:88")));
        let stack = [
            ("forward", "/home/a/model.py", 20),
            ("forward", "TORCH/fsdp/fully_sharded_data_parallel.py", 854),
            ("main", "/home/a/t.py", 5),
            ("wrapper", "TORCH/elastic/multiprocessing/errors/__init__.py", 355),
        ];
        assert_eq!(found(&stack), (Activity::Other, text("forward at model.py:20")));
        let installed = [("main", "/v/lib/python3.11/site-packages/trainer/cli.py", 5)];
        assert_eq!(found(&installed), (Activity::Other, text("main at cli.py:5")));
        assert_eq!(found(&[]), (Activity::Other, None));
    }

    /// The main thread of py-spy's output is that of the process. Its text shows short names of files.
    #[test]
    fn output_of_py_spy_is_read() {
        let json = r#"[
            {"pid": 7, "thread_id": 1, "thread_name": "other", "os_thread_id": 9, "active": true, "frames": []},
            {"pid": 7, "thread_id": 2, "thread_name": "MainThread", "os_thread_id": 7, "owns_gil": false, "frames": [
                {"name": "wait\u001b", "filename": "/a/t.py", "module": null, "short_filename": "t.py", "line": 3,
                 "locals": null, "is_entry": true}]}]"#;
        let (shown, stack) = of_py_spy(json.as_bytes()).unwrap();
        assert_eq!(stack, frames(&[("wait", "/a/t.py", 3)]));
        assert_eq!(shown, "Thread 9: other\nThread 7: MainThread\n    wait (t.py:3)\n");
        assert!(of_py_spy(b"Error: Permission denied").is_none());
        assert_eq!(of_py_spy(b"[]").unwrap().1, Stack::default());
    }

    /// The last thread of `faulthandler` is the main one.
    #[test]
    fn output_of_faulthandler_is_read() {
        let shown = "Current thread 0x00007f (most recent call first):\n  <no Python frame>\n\n\
                     Thread 0x00007e (most recent call first):\n  File \"/a/x.py\", line 1 in run\n\n\
                     Thread 0x00007d (most recent call first):\n  File \"/a/t.py\", line 14 in main\n  \
                     File \"/a/t.py\", line 15 in <module>\n";
        let stack = frames(&[("main", "/a/t.py", 14), ("<module>", "/a/t.py", 15)]);
        assert_eq!(of_faulthandler(shown), Some(stack));
        assert_eq!(
            of_faulthandler("Thread 0x0 (most recent call first):\n  <no Python frame>"),
            None
        );
    }

    proptest! {
        /// Every text is either read or refused, and the result has no control characters.
        #[test]
        fn never_panics(text in "(Thread |  File \"|\", line | in |[0-9a-z/.<\n\u{1b}]){0,30}") {
            let stack = of_faulthandler(&text).unwrap_or_default();
            let line = stack.line().unwrap_or_default();
            prop_assert!(!line.chars().any(char::is_control));
            let _ = (stack.activity(), of_py_spy(text.as_bytes()));
        }
    }
}
