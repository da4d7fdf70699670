//! Tests metrics of real jobs: their port, their values, and the files of `packaging` that use them.

mod listen;
mod packaging;
mod page;
mod prometheus;
#[path = "../support/mod.rs"]
mod support;
mod values;
