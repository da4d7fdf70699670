//! Serves one store on an address, by default `127.0.0.1:0`, until it is killed.
//!
//! Prints the address it is bound to, so that benches and conformance tests can start it.

use std::io::Write as _;

use ragent_store::{AdmissionRule, StoreThread, listen};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = listen(addr.parse()?)?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let stores = StoreThread::start("store")?;
    let _store = stores.open(listener, AdmissionRule::Anybody)?;
    loop {
        std::thread::park();
    }
}
