//! Tests modules that use a GPU while they are imported.

use std::fs;

use crate::{
    machine::Machine,
    support::{Sandbox, count_standbys, free_port},
};

/// A module that creates a CUDA context while it is imported is not imported early.
#[test]
fn module_with_a_cuda_context() {
    let Some(machine) = Machine::with_gpus() else { return };
    let sandbox = Sandbox::new();
    let module = "import torch\nHELD = torch.zeros(1, device='cuda')\n";
    fs::create_dir(sandbox.path("modules")).unwrap();
    fs::write(sandbox.path("modules/cuda_early.py"), module).unwrap();
    let script = "\
import sys
print('torch' in sys.modules, 'cuda_early' in sys.modules)
import cuda_early
print(cuda_early.HELD.item())
";
    fs::write(sandbox.path("train.py"), script).unwrap();
    let flags = format!("--nnodes 2 --rdzv-id j --rdzv-endpoint 127.0.0.1:{}", free_port());
    let words = format!("{flags} --node-rank 0 --standby=torch,cuda_early train.py");
    let mut node = machine.ragent(&sandbox, &words).start();
    node.logs("all standbys are ready");
    let words = format!("{flags} --node-rank 1 --role other --no-python true");
    let other = sandbox.ragent(&words).start();
    let end = node.end();
    other.end().assert_code(0);
    end.assert_code(0);
    assert_eq!(end.stdout, "True False\n0.0\n");
    let warning = "standbys do not import `cuda_early` from now on: it opens /dev/nvidia";
    assert!(end.stderr.contains(warning), "{}", end.stderr);
    assert_eq!(count_standbys(&end.stderr), 1, "{}", end.stderr);
}
