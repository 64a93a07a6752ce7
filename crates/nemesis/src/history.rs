//! The records of a run, in order: one JSON object a line in `history.jsonl`, so that an interrupted run has a history, too.
//! The checks read the records in memory, not the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

/// Microseconds since the host was booted. Pods read the same clock in `/proc/uptime`; no fault changes it.
pub type Micros = u64;

/// The current time of this clock.
pub fn now() -> Micros {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(std::time::Duration::from);
    let now = now.unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// A version of a register: its resourceVersion, and the number of its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Version {
    pub revision: u64,
    /// Unique in the run.
    pub write: u64,
}

/// An operation on one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Create {
        write: u64,
    },
    /// With a resourceVersion as precondition.
    Update {
        write: u64,
        expected: u64,
    },
    /// Without a precondition.
    Patch {
        write: u64,
    },
    Delete,
    Get,
}

impl Operation {
    /// The number of the write, if the operation creates a version.
    pub fn write(self) -> Option<u64> {
        match self {
            Operation::Create { write } | Operation::Update { write, .. } | Operation::Patch { write } => {
                Some(write)
            }
            Operation::Delete | Operation::Get => None,
        }
    }
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CallResult {
    /// The version that was written or read; none of a deletion.
    Ok(Option<Version>),
    NotFound,
    AlreadyExists,
    Conflict,
    /// Certainly without effect: it was never sent, or never admitted.
    Rejected(String),
    /// No response, or one from which it is not known whether the operation happened.
    Unknown(String),
}

/// A request for one register, with the times of request and response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    pub client: String,
    pub server: String,
    pub key: String,
    pub operation: Operation,
    pub start: Micros,
    pub end: Micros,
    pub answer: CallResult,
}

/// The registers by name, at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    pub revision: u64,
    pub registers: BTreeMap<String, Version>,
}

/// A list of all registers.
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
    /// It listed, because it has no position from which a server can resume.
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
    /// Creates the file of a history.
    pub fn create(path: &Path) -> std::io::Result<History> {
        let file = Mutex::new(Some(BufWriter::new(File::create(path)?)));
        Ok(History { file, begin: now() })
    }

    /// The time since the run began.
    pub fn elapsed(&self) -> Micros {
        now() - self.begin
    }

    /// Writes one record. If the history cannot be written, that is reported once, and the run continues: the checks do not
    /// read it.
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
            eprintln!("nemesis: cannot write the history: {e}");
            *file = None;
        }
    }

    /// Writes what is buffered.
    pub fn flush(&self) {
        if let Some(writer) = self.file.lock().as_mut()
            && let Err(e) = writer.flush()
        {
            eprintln!("nemesis: the history is incomplete: {e}");
        }
    }
}
