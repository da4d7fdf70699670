#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ragent_store::server::sock_diag(input));
