//! Errors, and the element that caused them.

use std::fmt;
use std::sync::Arc;

use nix::errno::Errno;

use crate::wire::Malformed;

/// What a message of a batch, or a request, was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    AddElements,
    CreateElements,
    DeleteElements,
    FlushSet,
    DeleteTable,
    ListTables,
    ListChains,
    ListSets,
    DumpElements,
    Generation,
    DumpFlows,
    DeleteFlows,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AddElements => "add elements to",
            Operation::CreateElements => "create elements of",
            Operation::DeleteElements => "delete elements of",
            Operation::FlushSet => "flush",
            Operation::DeleteTable => "delete table",
            Operation::ListTables => "list tables",
            Operation::ListChains => "list chains of",
            Operation::ListSets => "list sets of",
            Operation::DumpElements => "dump elements of",
            Operation::Generation => "get the generation",
            Operation::DumpFlows => "dump conntrack entries",
            Operation::DeleteFlows => "delete conntrack entries",
        })
    }
}

/// One message of a batch that the kernel rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub operation: Operation,
    /// Set or table: `ip knarr-proxy class`.
    pub target: Arc<str>,
    /// The key of the element that was the reason, if the kernel names it.
    pub key: Option<Box<[u8]>>,
    pub errno: Errno,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.target)?;
        if let Some(key) = &self.key {
            f.write_str(" at ")?;
            for byte in key {
                write!(f, "{byte:02x}")?;
            }
        }
        write!(f, ": {}", self.errno.desc())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    #[error("cannot {operation} {target}: send")]
    Send {
        operation: Operation,
        target: Arc<str>,
        #[source]
        source: Errno,
    },
    /// What was sent may have been done: ENOBUFS is an answer that was lost.
    #[error("cannot {operation} {target}: receive")]
    Receive {
        operation: Operation,
        target: Arc<str>,
        #[source]
        source: Errno,
    },
    #[error("cannot {operation} {target}")]
    Malformed {
        operation: Operation,
        target: Arc<str>,
        #[source]
        source: Malformed,
    },
    /// The kernel's error to a request.
    #[error("cannot {operation} {target}")]
    Request {
        operation: Operation,
        target: Arc<str>,
        #[source]
        source: Errno,
    },
    /// Nothing of the batch was done. The first rejection is the reason, later ones may be its consequences; there is at
    /// least one.
    #[error("the kernel rejects a batch: cannot {}{}", first(.0), others(.0))]
    Rejected(Vec<Rejection>),
    /// The set or table changed during each of several dumps.
    #[error("cannot {operation} {target}: it changes all the time")]
    Interrupted { operation: Operation, target: Arc<str> },
    /// An element does not fit its set; nothing was sent.
    #[error("an element of {set} has a {part} of {length} bytes, expected {expected}")]
    Shape {
        set: Arc<str>,
        part: &'static str,
        length: usize,
        expected: usize,
    },
    #[error("nft rejects a script: {message}")]
    Script { message: String },
    #[error("cannot run nft")]
    Nft(#[source] std::io::Error),
}

fn first(rejections: &[Rejection]) -> String {
    rejections.first().map(ToString::to_string).unwrap_or_default()
}

fn others(rejections: &[Rejection]) -> String {
    match rejections.len() {
        0 | 1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    }
}

impl Error {
    /// The kernel's reason, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Send { source, .. } | Error::Receive { source, .. } | Error::Request { source, .. } => {
                Some(*source)
            }
            Error::Rejected(rejections) => rejections.first().map(|r| r.errno),
            _ => None,
        }
    }

    /// The table or set is not there, or an element that was to be deleted is not.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(Errno::ENOENT)
    }

    /// An element that was to be created is there already, or (EBUSY) is there with other data.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.errno(), Some(Errno::EEXIST | Errno::EBUSY))
    }
}
