//! Runs libFuzzer on the target of knarr-fuzz that `KNARR_FUZZ_TARGET` names.
#![no_main]

use std::sync::OnceLock;

use knarr_fuzz::{TARGETS, Target, target};

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(init: {
    let name = std::env::var("KNARR_FUZZ_TARGET").unwrap_or_default();
    let Some(found) = target(&name) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("KNARR_FUZZ_TARGET is {name:?}, expected one of {}", names.join(", "));
        std::process::exit(2);
    };
    CHOSEN.get_or_init(|| found);
}, |data: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        (target.check)(data);
    }
});
