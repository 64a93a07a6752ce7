//! What this crate does to the kernel, each test in a network namespace of its own.

#![allow(clippy::unwrap_used)] // a test may stop where it stands; clippy knows that only inside test functions

mod table;

/// Runs in a thread, and so in a network namespace, of its own.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
