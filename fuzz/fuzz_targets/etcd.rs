#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| informerd::fuzzing::etcd(data));
