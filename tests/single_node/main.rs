//! Tests one node with real processes: ends, leftovers, output, exit codes.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod adversity;
mod alerts;
mod bad_input;
mod doctor;
mod endpoint;
mod environment;
mod exit_codes;
mod hangs;
mod hardening;
mod hardware;
mod health_check;
mod held_gpus;
mod launch_methods;
mod lines;
mod logs;
mod loss;
mod notices;
mod old_kernel;
mod orphans;
mod output_readers;
mod result_files;
mod serve;
mod service_manager;
mod stopping;
mod timers;
mod torchrun_name;
mod workers;

#[path = "../support/mod.rs"]
mod support;
