#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ragent::fuzzing::ras_answer(input));
