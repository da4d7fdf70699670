//! The machine and its system: clock, processes, files, random names and the host itself.

pub mod alarm;
pub mod cgroup;
pub mod clock;
pub mod files;
pub mod folder_lock;
pub mod host;
mod limits;
pub mod memory;
pub mod parents;
pub mod port_holder;
pub mod private_folder;
pub mod proc;
pub mod random;
pub mod stdout;
pub mod system_error;
pub mod tree;
pub mod unix;
pub mod user_command;
pub mod users;
