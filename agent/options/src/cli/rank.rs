//! Defines the flags of `ragent rank`.

use std::ffi::OsString;

use clap::Args;

/// Flags of `ragent rank`.
#[derive(Args, Clone, Debug)]
pub struct RankArgs {
    /// Address of rank 0 [default: MASTER_ADDR, else the address that the launcher provides]
    #[arg(long, value_name = "ADDR")]
    pub master_addr: Option<String>,
    /// Port of rank 0 [default: MASTER_PORT, else a port derived from the job's name]
    #[arg(long, allow_negative_numbers = true, value_name = "PORT")]
    pub master_port: Option<String>,
    /// Program and its arguments
    // The program's own flags belong to it, as in `JobArgs`.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}
