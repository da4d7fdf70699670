//! The machine and its system: clock, processes, files, random names and the host itself.

pub(crate) mod alarm;
pub(crate) mod cgroup;
pub mod clock;
pub(crate) mod files;
pub(crate) mod folder_lock;
pub mod host;
mod limits;
pub(crate) mod memory;
pub(crate) mod parents;
pub(crate) mod port_holder;
pub(crate) mod private_folder;
pub(crate) mod proc;
pub(crate) mod random;
pub(crate) mod stdout;
pub mod system_error;
pub(crate) mod tree;
pub(crate) mod unix;
pub(crate) mod users;
