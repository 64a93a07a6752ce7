//! The start of a container without an invocation of runc: its process is released at runc's FIFO.

use crate::error::Failure;
use crate::poll::{Interest, Source};
use crate::runc::{Directory, Release, Released};
use crate::runtime::RuntimeError;
use crate::server::Server;
use crate::task::Step;
use crate::ttrpc::connection::ReplyTo;

/// A start under way.
pub struct Releasing {
    container: String,
    release: Release,
    reply: ReplyTo,
}

impl Server {
    /// Begins a start. False if the OCI runtime's program is to do it.
    pub(super) fn begin_release(&mut self, id: &str, reply: ReplyTo) -> Result<bool, Failure> {
        let container = self.container(id)?;
        let (true, Some(pid)) = (container.plain, container.init.pid) else {
            return Ok(false);
        };
        let directory = container.runtime.directory(id);
        container.init.begin(Step::Start)?;
        let number = self.next_number();
        let released = Directory::open(&directory, pid)
            .and_then(Directory::release)
            .and_then(|release| {
                self.poll
                    .add(&release.fifo, Source::Release(number), Interest::Read)?;
                Ok(release)
            });
        let Ok(release) = released else {
            // Another runtime: nothing has been done yet.
            if let Some(exit) = self.container(id)?.init.end(false) {
                self.ended(id, "", exit);
            }
            return Ok(false);
        };
        let releasing = Releasing {
            container: id.to_owned(),
            release,
            reply,
        };
        self.awaiting.releases.insert(number, releasing);
        Ok(true)
    }

    /// A container's process may have continued, or has exited.
    pub fn check_release(&mut self, number: u32, exited: bool) {
        let Some(releasing) = self.awaiting.releases.get(&number) else {
            return;
        };
        let result = match releasing.release.check() {
            Ok(Released::Yes) => Ok(()),
            Ok(Released::NotYet) if exited => {
                Err(RuntimeError::Logged("container process is already dead".into()))
            }
            Ok(Released::NotYet) => return,
            Err(e) => Err(RuntimeError::Logged(format!("cannot read exec fifo: {e}"))),
        };
        if let Some(releasing) = self.awaiting.releases.remove(&number) {
            self.finish_start(&releasing.container, result, releasing.reply);
        }
    }

    /// The first process of a container has exited: a start under way ends now.
    pub fn end_release(&mut self, id: &str) {
        let mut releases = self.awaiting.releases.iter();
        let number = releases.find_map(|(number, releasing)| (releasing.container == id).then_some(*number));
        if let Some(number) = number {
            self.check_release(number, true);
        }
    }
}
