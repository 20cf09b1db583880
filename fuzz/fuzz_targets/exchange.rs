//! Any messages of a gateway, in any order: each phase is answered at most once, and bodies go back as they came.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| warmpath::extproc::exchange::fuzz(input));
