//! Parts that unit tests of the crates above use.

use std::ffi::OsString;

use ragent_base::sys::host::FakeHost;

use crate::{cli::Cli, spec::JobSpec};

/// The job of `ragent --no-python true`, on a machine without anything else.
pub fn job_spec() -> JobSpec {
    let host = FakeHost { programs: vec!["/bin/true".into()], ..FakeHost::default() };
    let words = ["ragent", "--no-python", "/bin/true"].map(OsString::from);
    let cli = Cli::read(words).expect("a command line");
    JobSpec::resolve(cli.launch, &host).expect("a job")
}
