//! Errors: of the commands `start` and `delete`, and what a request of containerd is answered with.

use std::error::Error;
use std::io;

use containerd_shim_protos::ttrpc::Code;

/// Why `start` or `delete` failed; containerd shows it.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("argument {0:?} is not understood")]
    Argument(String),
    #[error("expected the action start or delete, not {0:?}")]
    Action(String),
    #[error("{flag} {value:?} is not an identifier")]
    Identifier { flag: &'static str, value: String },
    #[error("cannot read the bundle's {file}")]
    Bundle { file: &'static str, source: io::Error },
    #[error("cannot parse the bundle's {file}")]
    Parse {
        file: &'static str,
        source: serde_json::Error,
    },
    #[error("cannot parse the runtime's options")]
    Options { source: io::Error },
    #[error("cannot listen on {address}")]
    Listen { address: String, source: io::Error },
    #[error("cannot start the shim's process")]
    Fork { source: io::Error },
    #[error("cannot set up the shim's process: {step}")]
    Process { step: &'static str, source: io::Error },
    #[error("cannot write to standard output")]
    Output { source: io::Error },
}

/// An error as the answer to a request: a gRPC code and a message.
///
/// containerd appends its own name of the code when it shows the message, and removes that name first if the message
/// ends with it. The messages end with it, as Go's shim's do, for clients that do not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    /// An error without a class of its own. containerd shows it with ": unknown" behind.
    pub fn unknown(message: impl Into<String>) -> Self {
        Failure {
            code: Code::UNKNOWN,
            message: message.into(),
        }
    }

    fn of(code: Code, what: impl std::fmt::Display, class: &str) -> Self {
        Failure {
            code,
            message: format!("{what}: {class}"),
        }
    }

    pub fn not_found(what: impl std::fmt::Display) -> Self {
        Failure::of(Code::NOT_FOUND, what, "not found")
    }

    pub fn already_exists(what: impl std::fmt::Display) -> Self {
        Failure::of(Code::ALREADY_EXISTS, what, "already exists")
    }

    pub fn precondition(what: impl std::fmt::Display) -> Self {
        Failure::of(Code::FAILED_PRECONDITION, what, "failed precondition")
    }

    pub fn invalid(what: impl std::fmt::Display) -> Self {
        Failure::of(Code::INVALID_ARGUMENT, what, "invalid argument")
    }

    pub fn unimplemented(what: impl std::fmt::Display) -> Self {
        Failure::of(Code::UNIMPLEMENTED, what, "not implemented")
    }

    /// `what` failed because of `error`.
    pub fn because(what: impl std::fmt::Display, error: &dyn Error) -> Self {
        Failure::unknown(format!("{what}: {}", chain(error)))
    }
}

/// An error and its sources in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
