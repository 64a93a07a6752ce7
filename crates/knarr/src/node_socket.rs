//! The node's own socket, below its data directory, for requests that only root on the host may make.
//!
//! A request is one line of JSON, its responses are lines of JSON, and the connection is closed after the last. A request
//! continues when its client disconnects.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use knarr_node::kubelet::shutdown::{Progress, Request, Requests};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::command::Failure;

/// The limit of a request line; requests are far shorter.
const REQUEST_BYTES_MAX: u64 = 4096;

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("run/node.sock")
}

/// Serves until `cancel`.
pub fn serve(data_dir: &Path, requests: Requests, cancel: CancellationToken) -> Result<(), Failure> {
    let path = path(data_dir);
    let failed = |e| Failure::new(format!("cannot listen on {}", path.display())).because(e);
    // Only its owner may connect, from the moment it exists.
    let part = path.with_extension("part");
    for stale in [&part, &path] {
        if let Err(e) = std::fs::remove_file(stale)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(failed(e));
        }
    }
    let listener = UnixListener::bind(&part).map_err(failed)?;
    std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&part, &path).map_err(failed)?;
    let accepting = async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let requests = requests.clone();
                    tokio::spawn(async move {
                        if let Err(error) = handle(stream, &requests).await {
                            tracing::debug!(%error, "a connection on the node's socket failed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the node's socket");
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
            }
        }
    };
    tokio::spawn(cancel.run_until_cancelled_owned(accepting));
    Ok(())
}

async fn handle(stream: UnixStream, requests: &Requests) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_BYTES_MAX))
        .read_line(&mut line)
        .await?;
    let request: Request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(e) => {
            let why = format!("{:?} is not a valid request: {e}", line.trim());
            return write_line(&mut write, &Progress::Rejected { why }).await;
        }
    };
    let mut progress = requests.ask(request);
    while let Some(response) = progress.recv().await {
        write_line(&mut write, &response).await?;
        if response.is_last() {
            break;
        }
    }
    Ok(())
}

async fn write_line(write: &mut (impl AsyncWriteExt + Unpin), progress: &Progress) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(progress)?;
    line.push(b'\n');
    write.write_all(&line).await
}

/// Sends a request to the node of this data directory; `on_progress` is called with each response. Returns the last one.
pub async fn send(
    data_dir: &Path,
    request: Request,
    mut on_progress: impl FnMut(&Progress),
) -> Result<Progress, Failure> {
    let path = path(data_dir);
    let stream = UnixStream::connect(&path).await.map_err(|e| {
        let what = format!(
            "no node runs with this data directory: cannot connect to {}",
            path.display()
        );
        Failure::new(what).because(e)
    })?;
    let broken = |e: std::io::Error| Failure::new("the connection to the node failed").because(e);
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(&request).map_err(|e| broken(e.into()))?;
    line.push(b'\n');
    write.write_all(&line).await.map_err(broken)?;
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await.map_err(broken)? {
        let response: Progress = serde_json::from_str(&line).map_err(|e| broken(e.into()))?;
        on_progress(&response);
        if response.is_last() {
            return Ok(response);
        }
    }
    Err(Failure::new(
        "the node closed the connection before its last response",
    ))
}
