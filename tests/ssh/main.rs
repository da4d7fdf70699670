//! Jobs that are started over ssh.
