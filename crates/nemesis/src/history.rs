//! What happened in a run, in the order in which it was recorded: one JSON object a line in `history.jsonl`, so that a run
//! that was interrupted leaves one too. The checkers read the records themselves, not the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

/// Microseconds since the machine was started. Pods read the same clock in `/proc/uptime`; no fault steps it.
pub type Micros = u64;

/// How far the clock is.
pub fn now() -> Micros {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    let now = now.unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// A version of a register: the resourceVersion that the server gave it, and which write it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Version {
    pub revision: u64,
    /// Unique in the run.
    pub write: u64,
}

/// What a client asks of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Create {
        write: u64,
    },
    /// With the resourceVersion that it must have.
    Update {
        write: u64,
        expected: u64,
    },
    /// Without one.
    Patch {
        write: u64,
    },
    Delete,
    Get,
}

impl Operation {
    /// The write, if it is one that leaves a version.
    pub fn write(self) -> Option<u64> {
        match self {
            Operation::Create { write } | Operation::Update { write, .. } | Operation::Patch { write } => {
                Some(write)
            }
            Operation::Delete | Operation::Get => None,
        }
    }
}

/// What a client was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The version that was written or read; none of a deletion.
    Ok(Option<Version>),
    NotFound,
    AlreadyExists,
    Conflict,
    /// Certainly without effect: it was never sent, or never admitted.
    Rejected(String),
    /// No answer, or one that does not say whether it has happened.
    Unknown(String),
}

/// A request for one register, with the times at which it was sent and answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    pub client: String,
    pub server: String,
    pub key: String,
    pub operation: Operation,
    pub start: Micros,
    pub end: Micros,
    pub answer: Answer,
}

/// Registers by their names, as they are at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    pub revision: u64,
    pub registers: BTreeMap<String, Version>,
}

/// An answered list of all registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct List {
    pub client: String,
    pub server: String,
    pub start: Micros,
    pub end: Micros,
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// What a watcher received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Received {
    /// It listed: it has no position that a server still knows.
    Listed(Snapshot),
    /// A watch from its position was opened at this server.
    Opened {
        server: String,
        from: u64,
    },
    Event {
        change: Change,
        key: String,
        version: Version,
    },
    Bookmark(u64),
    /// The watch ended, for this reason; the next one resumes.
    Ended(String),
}

/// The records of a run.
pub struct History {
    file: Mutex<Option<BufWriter<File>>>,
    begin: Micros,
}

impl History {
    /// Begins a history in this file.
    pub fn create(path: &Path) -> std::io::Result<History> {
        let file = Mutex::new(Some(BufWriter::new(File::create(path)?)));
        Ok(History { file, begin: now() })
    }

    /// Since the run began.
    pub fn elapsed(&self) -> Micros {
        now() - self.begin
    }

    /// Writes one record. A history that cannot be written any more is reported once, and the run continues: the checkers do
    /// not read it.
    pub fn record(&self, what: &str, record: &impl Serialize) {
        let mut value = json!({ "at": self.elapsed(), "what": what });
        let record = serde_json::to_value(record).unwrap_or(Value::Null);
        if let (Some(line), Value::Object(fields)) = (value.as_object_mut(), &record) {
            line.extend(fields.clone());
        } else {
            value["is"] = record;
        }
        let mut file = self.file.lock();
        let Some(writer) = file.as_mut() else { return };
        if let Err(e) = writeln!(writer, "{value}") {
            eprintln!("nemesis: the history cannot be written any more: {e}");
            *file = None;
        }
    }

    /// Writes what is buffered.
    pub fn flush(&self) {
        if let Some(writer) = self.file.lock().as_mut()
            && let Err(e) = writer.flush()
        {
            eprintln!("nemesis: the history is not whole: {e}");
        }
    }
}
