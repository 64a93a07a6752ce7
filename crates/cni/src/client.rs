//! The plugin `knarr-cni`: calls the agent.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::protocol::{
    Code, Command, Failure, MAX_MESSAGE_BYTES, NetworkConfig, Reply, Request, VERSIONS, attachment,
    host_ports, version_answer, version_of,
};
use crate::{COMMAND, Environment};

/// How long the plugin waits for the agent; above what the agent takes at most for one command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub fn run(environment: &Environment, config: &[u8]) -> Result<String, Failure> {
    let command = environment.get(COMMAND).map(String::as_str).unwrap_or_default();
    let version = version_of(config);
    if let Some(answer) = version_answer(command, &version, &VERSIONS)? {
        return Ok(answer);
    }
    let config: NetworkConfig = serde_json::from_slice(config)
        .map_err(|error| Failure::new(Code::Decode, "cannot decode the configuration").because(&error))?;
    let command = match command {
        "ADD" => Command::Add,
        "DEL" => Command::Del,
        "CHECK" => Command::Check,
        "GC" => Command::Gc,
        "STATUS" => Command::Status,
        other => {
            return Err(Failure::new(
                Code::InvalidEnvironment,
                format!("CNI_COMMAND is {other:?}"),
            ));
        }
    };
    let attachment = match command {
        Command::Add | Command::Check => Some(attachment(environment, true)?),
        Command::Del => Some(attachment(environment, false)?),
        Command::Gc | Command::Status => None,
    };
    let is_add = command == Command::Add;
    let request = Request {
        command,
        attachment,
        prev_result: config.prev_result,
        valid: config
            .valid_attachments
            .map(|valid| valid.into_iter().map(|valid| valid.container_id).collect()),
        // A pod must be removed whatever its ports are.
        host_ports: match is_add {
            true => host_ports(&config.runtime_config.port_mappings)?,
            false => Vec::new(),
        },
        bandwidth: config.runtime_config.bandwidth.unwrap_or_default(),
    };
    match ask(&config.socket, &request)? {
        Reply::Added(added) => Ok(added.to_json(&version)),
        Reply::Done => Ok(String::new()),
        Reply::Failed(failure) => Err(failure),
    }
}

fn ask(socket: &Path, request: &Request) -> Result<Reply, Failure> {
    let text = serde_json::to_vec(request)
        .map_err(|error| Failure::new(Code::Decode, "cannot encode the request").because(&error))?;
    let mut answer = Vec::new();
    exchange(socket, &text, &mut answer).map_err(|error| {
        // The agent is starting, stopping, or exited while it worked.
        let message = format!("the network agent does not answer at {}", socket.display());
        Failure::new(Code::TryAgain, message).because(&error)
    })?;
    serde_json::from_slice(&answer).map_err(|error| {
        // It exited before it had answered.
        Failure::new(Code::TryAgain, "the network agent's answer is not whole").because(&error)
    })
}

fn exchange(socket: &Path, request: &[u8], answer: &mut Vec<u8>) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request)?;
    stream.shutdown(Shutdown::Write)?;
    stream.take(MAX_MESSAGE_BYTES).read_to_end(answer)?;
    Ok(())
}
