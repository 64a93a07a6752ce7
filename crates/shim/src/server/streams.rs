//! The copies of all processes' streams, and output that has not been read yet.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::{Server, Timer};
use crate::clock::Instant;
use crate::stdio::copy::{Copy, Progress, Unread};
use crate::stdio::{Io, Prepared, Stream};

/// How often a FIFO is checked for whether it has been read.
const STRAY: Duration = Duration::from_millis(200);

/// A copy, and whose it is.
#[derive(Debug)]
pub struct Streaming {
    copy: Copy,
    container: String,
    exec: String,
    stream: Stream,
}

/// Output that ended while no process read it.
#[derive(Debug)]
pub struct Stray {
    pub container: String,
    unread: Unread,
}

impl Server {
    /// Begins to copy a process's streams.
    pub fn begin_streams(
        &mut self,
        container: &str,
        exec: &str,
        prepared: Prepared,
        console: Option<OwnedFd>,
    ) -> io::Result<Io> {
        let mut io = Io {
            stdin: prepared.stdin,
            console,
            copies: Vec::new(),
        };
        for (stream, copy) in prepared.copies {
            let number = self.next_number();
            copy.watch(&self.poll, number)?;
            io.copies.push((stream, number));
            let streaming = Streaming {
                copy,
                container: container.to_owned(),
                exec: exec.to_owned(),
                stream,
            };
            self.streams.insert(number, streaming);
        }
        Ok(io)
    }

    pub(super) fn run_stream(&mut self, number: u32) {
        let Some(streaming) = self.streams.get_mut(&number) else {
            return;
        };
        match streaming.copy.run() {
            Progress::Blocked => {}
            Progress::More => {
                self.turns.insert(number);
            }
            Progress::Ended => self.end_stream(number),
        }
    }

    /// The process of a terminal has exited: its output ends where there is no more now.
    pub(super) fn finish_stream(&mut self, number: u32) {
        if let Some(streaming) = self.streams.get_mut(&number) {
            streaming.copy.finish();
            self.run_stream(number);
        }
    }

    fn end_stream(&mut self, number: u32) {
        let Some(streaming) = self.streams.remove(&number) else {
            return;
        };
        let Streaming {
            copy,
            container: id,
            exec,
            stream,
        } = streaming;
        if let Some(unread) = copy.end() {
            self.strays.push(Stray {
                container: id.clone(),
                unread,
            });
            self.check_strays();
        }
        let Some(process) = self
            .containers
            .get_mut(&id)
            .and_then(|container| container.process(&exec).ok())
        else {
            return;
        };
        process.io.copies.retain(|(_, copy)| *copy != number);
        if stream == Stream::Stdin {
            process.io.stdin = None;
            // The end of a terminal's input hangs it up.
            if process.io.console.take().is_some() {
                for (_, output) in std::mem::take(&mut process.io.copies) {
                    self.finish_stream(output);
                    self.streams.remove(&output);
                }
            }
        }
        self.delete_if_ended(&id, &exec);
    }

    /// Gives up what is left of a process's streams.
    pub fn drop_streams(&mut self, io: Io) {
        for (_, number) in io.copies {
            self.streams.remove(&number);
        }
    }

    pub(super) fn check_strays(&mut self) {
        self.strays.retain(|stray| stray.unread.is_kept());
        self.timers.cancel(&Timer::Stray);
        if !self.strays.is_empty() {
            self.timers.set(Instant::now().after(STRAY), Timer::Stray);
        }
    }
}
