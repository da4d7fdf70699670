//! Serves one store on loopback until it is killed. The first line on stdout is its address.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::Result;
use ragent_base::sys::host::ThisHost;
use ragent_store::{AdmissionRule, StoreThread, listen};

fn main() -> Result<()> {
    ThisHost.raise_open_files();
    let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let stores = StoreThread::start("store")?;
    let _store = stores.open(listener, AdmissionRule::Anybody)?;
    loop {
        std::thread::park();
    }
}
