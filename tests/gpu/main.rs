//! Tests workers that use GPUs, with the real driver, CUDA and NCCL: `make test-gpu`.
//!
//! Without a GPU these tests print so and pass, even under `CI=true`. If torch cannot use the GPU, a test is skipped, as elsewhere.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod checkpoints;
mod machine;
mod memory;
mod restarts;
mod standbys;

#[path = "../support/mod.rs"]
mod support;
