//! Answers as bytes.

use containerd_shim_protos::api::{Empty, WaitResponse};
use containerd_shim_protos::protobuf::Message;

use crate::error::Failure;
use crate::exits::Exit;

pub fn message(message: &impl Message) -> Result<Vec<u8>, Failure> {
    message
        .write_to_bytes()
        .map_err(|e| Failure::because("cannot encode the answer", &e))
}

pub fn empty() -> Result<Vec<u8>, Failure> {
    message(&Empty::new())
}

pub fn wait_response(exit: Exit) -> Result<Vec<u8>, Failure> {
    message(&WaitResponse {
        exit_status: exit.status,
        exited_at: exit.at.to_message(),
        ..WaitResponse::default()
    })
}
