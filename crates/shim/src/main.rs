//! The shim as a program of its own. See the library.

fn main() -> std::process::ExitCode {
    knarr_shim::run()
}
