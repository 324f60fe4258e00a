#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| informerd::fuzzing::views(data));
