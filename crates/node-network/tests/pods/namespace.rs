//! A network namespace that a thread holds: it is removed when the thread exits.

use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use nix::sched::{CloneFlags, unshare};

type Work = Box<dyn FnOnce() + Send>;

pub struct Namespace {
    work: mpsc::Sender<Work>,
    pub thread: i32,
}

impl Namespace {
    pub fn new() -> Self {
        let (work, received) = mpsc::channel::<Work>();
        let (ready, thread) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            ready.send(nix::unistd::gettid().as_raw()).unwrap();
            while let Ok(work) = received.recv() {
                work();
            }
        });
        Namespace {
            work,
            thread: thread.recv().unwrap(),
        }
    }

    /// What a runtime would give as `CNI_NETNS`.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/task/{}/ns/net", std::process::id(), self.thread).into()
    }

    /// Does it in the namespace; threads and processes that it starts are there, too.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = move || {
            // A panic is the caller's, whose channel then has no sender.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.send(outcome).unwrap();
        };
        self.work.send(Box::new(work)).unwrap();
        match result.recv().unwrap() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs `ip`, `nft` and the like; fails with its error.
    pub fn command(&self, line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_string).collect();
        let text = line.to_string();
        self.run(move || {
            let output = Command::new(&arguments[0])
                .args(&arguments[1..])
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{text}: {error}");
            String::from_utf8(output.stdout).unwrap()
        })
    }
}
