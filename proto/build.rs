//! Compiles the protobuf definitions without a `protoc` program.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "proto/ragent/v1/ragent.proto",
            "proto/ragent/v1/voter.proto",
            "proto/ragent/v1/claim.proto",
            "proto/etcd/rpc.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
