//! Tests the arguments that workers get from `--launch-method` and from the paths of the job.

use std::{collections::BTreeMap, fs};

use crate::support::{End, Sandbox, Start};

/// The arguments of each worker that ran `args.sh`, by rank and attempt.
fn arguments(end: &End) -> BTreeMap<(u32, u32), Vec<String>> {
    end.assert_code(0);
    let mut arguments: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
    for line in end.stdout.lines() {
        let Some(rest) = line.strip_prefix("arg rank=") else { continue };
        let (rank, rest) = rest.split_once(" restart=").unwrap();
        let (restart, arg) = rest.split_once(' ').unwrap();
        let of_worker = (rank.parse().unwrap(), restart.parse().unwrap());
        arguments.entry(of_worker).or_default().push(arg.to_owned());
    }
    arguments
}

fn workers(sandbox: &Sandbox, words: &str) -> Start {
    sandbox.ragent(&format!("{words} --no-python args.sh --lr 3"))
}

/// The shared file of `init_method` is the same for all workers of a round, and a new one in each
/// round and in each run of the same job.
#[test]
fn shared_file_is_fresh() {
    let sandbox = Sandbox::new();
    let file = |args: &Vec<String>| {
        let at = args.iter().position(|arg| arg == "--init_method").unwrap();
        let path = args[at + 1].strip_prefix("file://").unwrap().to_owned();
        assert!(path.starts_with(&sandbox.path("shared/x-").display().to_string()), "{path}");
        path
    };
    let words = "--launch-method basic --shared-file shared/x --rdzv-id job7";
    let two = arguments(&workers(&sandbox, &format!("--nproc-per-node 2 {words}")).run());
    let first = file(&two[&(0, 0)]);
    assert_eq!(file(&two[&(1, 0)]), first);
    let again = workers(&sandbox, &format!("--max-restarts 1 {words}")).env("FAILS", "1").run();
    let again = arguments(&again);
    let files = [first, file(&again[&(0, 0)]), file(&again[&(0, 1)])];
    assert!(files[0] != files[1] && files[1] != files[2] && files[0] != files[2], "{files:?}");
    assert!(sandbox.path("shared").is_dir());
}

/// With `deepspeed`, workers get the arguments and variables of DeepSpeed's launcher: the local rank first, and the configuration last.
#[test]
fn deepspeed_contract() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("ds.json"), "{\"train_batch_size\": 2}").unwrap();
    let words = "--nproc-per-node 2 --launch-method deepspeed --deepspeed-config ds.json";
    let arguments = arguments(&workers(&sandbox, words).run());
    for rank in 0..2 {
        let local_rank = format!("--local_rank={rank}");
        let expected = [&local_rank, "--lr", "3", "--deepspeed", "--deepspeed_config", "ds.json"];
        assert_eq!(arguments[&(rank, 0)], expected);
    }
    let end = sandbox.ragent(&format!("{words} --no-python environment.sh")).run();
    for variable in [
        "RANK=1",
        "LOCAL_RANK=1",
        "WORLD_SIZE=2",
        "LOCAL_SIZE=2",
        "CROSS_RANK=0",
        "CROSS_SIZE=1",
        "MASTER_ADDR=127.0.0.1",
        "MASTER_PORT=",
    ] {
        let line = format!("env rank=1 {variable}");
        assert!(end.stdout.lines().any(|printed| printed.starts_with(&line)), "{variable}");
    }
}

/// A folder that cannot be made is reported before anything starts.
#[test]
fn folder_that_cannot_be_made() {
    let sandbox = Sandbox::new();
    let end = workers(&sandbox, "--save-path auto:/proc/no").run();
    end.assert_code(2);
    end.assert_stderr(&["`--save-path /proc/no/ragent-", "cannot be written", "hint: "]);
    assert_eq!(end.stdout, "");
}
