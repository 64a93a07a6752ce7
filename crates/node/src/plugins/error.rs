//! Why a call of a plugin failed.

use tonic::{Code, Status};

/// Why a call failed, with gRPC's code and message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct CallError {
    pub code: Code,
    pub message: String,
}

impl CallError {
    pub(super) fn unavailable(error: &tonic::transport::Error) -> Self {
        CallError {
            code: Code::Unavailable,
            message: error.to_string(),
        }
    }

    pub(super) fn deadline_exceeded() -> Self {
        CallError {
            code: Code::DeadlineExceeded,
            message: "context deadline exceeded".into(),
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        CallError {
            code: status.code(),
            message: status.message().to_string(),
        }
    }
}
