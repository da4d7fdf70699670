#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ragent::fuzzing::death_notice(input));
