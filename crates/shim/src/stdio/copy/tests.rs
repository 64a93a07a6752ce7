//! Copies between real FIFOs and pipes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;
use crate::runtime::Streams;
use crate::stdio::{Owner, Prepared, Stdio, Stream, prepare};

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Fixture {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn fifo(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    }

    fn prepare(&self, stdio: &Stdio) -> (Streams, Prepared) {
        let owner = Owner {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        prepare(stdio, owner).unwrap()
    }

    /// A process that writes to standard output, and its copy.
    fn output(&self, to: &Path) -> (File, Copy) {
        let stdio = Stdio {
            stdout: to.display().to_string(),
            ..Stdio::default()
        };
        let (streams, mut prepared) = self.prepare(&stdio);
        let Streams::Container { stdout, .. } = streams else {
            unreachable!()
        };
        (File::from(stdout.unwrap()), prepared.copies.remove(0).1)
    }
}

/// Reads what a FIFO has without waiting for more.
fn available(path: &Path) -> Vec<u8> {
    let fd = super::super::open(path, rustix::fs::OFlags::RDONLY).unwrap();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length) = rustix::io::read(&fd, &mut chunk) {
        if length == 0 {
            break;
        }
        bytes.extend_from_slice(&chunk[..length]);
    }
    bytes
}

#[test]
fn output_reaches_the_fifo_and_ends_with_the_last_writer() {
    let fixture = Fixture::new();
    let fifo = fixture.fifo("out");
    let (mut container, mut copy) = fixture.output(&fifo);
    assert_eq!(copy.run(), Progress::Blocked);
    let reader = super::super::open(&fifo, rustix::fs::OFlags::RDONLY).unwrap();
    let second = container.try_clone().unwrap();
    container.write_all(b"hello").unwrap();
    drop(container);
    assert_eq!(copy.run(), Progress::Blocked, "another process has it open");
    drop(second);
    assert_eq!(copy.run(), Progress::Ended);
    assert!(copy.end().is_none(), "the FIFO has a reader");
    rustix::io::ioctl_fionbio(&reader, false).unwrap();
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
}

#[test]
fn output_waits_while_it_is_not_read_and_none_of_it_is_lost() {
    let fixture = Fixture::new();
    let fifo = fixture.fifo("out");
    let (container, mut copy) = fixture.output(&fifo);
    rustix::io::ioctl_fionbio(&container, true).unwrap();
    let mut written = Vec::new();
    let mut blocked = 0;
    // Until the FIFO and the pipe are full.
    for number in 0_u32.. {
        let line = format!("{number:07}\n");
        match rustix::io::write(&container, line.as_bytes()) {
            Ok(length) => {
                assert_eq!(length, line.len());
                written.extend_from_slice(line.as_bytes());
            }
            Err(Errno::AGAIN) if blocked < 3 => {
                assert_eq!(copy.run(), Progress::Blocked);
                blocked += 1;
            }
            Err(e) => {
                assert_eq!(e, Errno::AGAIN);
                break;
            }
        }
    }
    drop(container);
    let mut read = Vec::new();
    while copy.run() == Progress::Blocked {
        read.extend(available(&fifo));
    }
    let unread = copy.end();
    read.extend(available(&fifo));
    drop(unread);
    assert_eq!(read.len(), written.len());
    assert!(read == written);
}

#[test]
fn output_that_ended_is_kept_until_it_has_been_read() {
    let fixture = Fixture::new();
    let fifo = fixture.fifo("out");
    let (mut container, mut copy) = fixture.output(&fifo);
    container.write_all(b"last words").unwrap();
    drop(container);
    assert_eq!(copy.run(), Progress::Ended);
    let unread = copy.end().expect("no process has it open");
    assert!(unread.is_kept());
    let reader = super::super::open(&fifo, rustix::fs::OFlags::RDONLY).unwrap();
    assert!(!unread.is_kept(), "who has it open gets it");
    drop(unread);
    assert_eq!(available(&fifo), b"last words");
    drop(reader);
    // Nothing is kept of what was empty.
    let (container, mut copy) = fixture.output(&fifo);
    drop(container);
    assert_eq!(copy.run(), Progress::Ended);
    assert!(copy.end().is_none());
}

#[test]
fn input_ends_when_it_is_closed_and_not_before() {
    let fixture = Fixture::new();
    let fifo = fixture.fifo("in");
    let stdio = Stdio {
        stdin: fifo.display().to_string(),
        ..Stdio::default()
    };
    let (streams, mut prepared) = fixture.prepare(&stdio);
    let Streams::Container { stdin, .. } = streams else {
        unreachable!()
    };
    let mut container = File::from(stdin.unwrap());
    let (stream, mut copy) = prepared.copies.remove(0);
    assert_eq!(stream, Stream::Stdin);
    assert_eq!(copy.run(), Progress::Blocked);
    for text in ["first", "second"] {
        // Each time by another containerd.
        std::fs::write(&fifo, text).unwrap();
        assert_eq!(copy.run(), Progress::Blocked);
    }
    drop(prepared.stdin.take());
    assert_eq!(copy.run(), Progress::Ended);
    drop(copy);
    let mut text = String::new();
    container.read_to_string(&mut text).unwrap();
    assert_eq!(text, "firstsecond");
}

#[test]
fn input_ends_when_the_container_closes_it() {
    let fixture = Fixture::new();
    let fifo = fixture.fifo("in");
    let stdio = Stdio {
        stdin: fifo.display().to_string(),
        ..Stdio::default()
    };
    let (streams, mut prepared) = fixture.prepare(&stdio);
    drop(streams);
    std::fs::write(&fifo, "x").unwrap();
    assert_eq!(prepared.copies[0].1.run(), Progress::Ended);
}

#[test]
fn output_to_a_file_is_appended_and_both_streams_may_share_it() {
    let fixture = Fixture::new();
    let path = fixture.directory.path().join("logs/of/a");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "old ").unwrap();
    let (mut container, mut copy) = fixture.output(Path::new(&format!("file://{}", path.display())));
    container.write_all(b"new").unwrap();
    drop(container);
    assert_eq!(copy.run(), Progress::Ended);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old new");
}

#[test]
fn a_copy_gives_others_a_turn() {
    let fixture = Fixture::new();
    let (mut container, mut copy) = fixture.output(Path::new("/dev/null"));
    let writer = std::thread::spawn(move || {
        let block = [0; 1 << 16];
        for _ in 0..64 {
            container.write_all(&block).unwrap();
        }
    });
    let mut turns = 0;
    loop {
        match copy.run() {
            Progress::More => turns += 1,
            Progress::Blocked => std::thread::yield_now(),
            Progress::Ended => break,
        }
    }
    writer.join().unwrap();
    // 4 MiB; at times the writer is the slower one.
    assert!(turns <= 4);
}

#[test]
fn a_scheme_that_is_not_known_is_an_error() {
    let stdio = Stdio {
        stdout: "binary:///usr/bin/logger?a=b".into(),
        ..Stdio::default()
    };
    let error = prepare(&stdio, Owner { uid: 0, gid: 0 }).err().unwrap();
    assert_eq!(error.to_string(), "unknown STDIO scheme binary");
}
