//! Memory of the server. It is this process's memory, so a test of it runs in a process of its own: the tests next to it
//! allocate, too.

use std::process::Command;

/// Set in the process of one test.
const OWN_PROCESS: &str = "KNARR_TEST_OWN_PROCESS";

/// Runs the test `name` (its path in this program) in a process of its own and fails as it does. Returns `true` in that process,
/// where the test continues, and `false` in the process that waited for it.
pub fn in_own_process(name: &str) -> bool {
    if std::env::var_os(OWN_PROCESS).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OWN_PROCESS, "1")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{name} in a process of its own: {}\n{stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Resident memory of this process, which the server is part of.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}
