//! The node's own socket, below its data directory: what only who is root on the machine may ask of it.
//!
//! A request is one line of JSON, its answers are such lines, and the end of the answers is the end of the
//! connection. A request goes on when whoever asked hangs up.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use knarr_node::kubelet::shutdown::{Progress, Request, Requests};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::command::Failure;

/// A request is far shorter.
const REQUEST_BYTES_MAX: u64 = 4096;

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("run/node.sock")
}

/// Answers until `cancel`.
pub fn serve(data_dir: &Path, requests: Requests, cancel: CancellationToken) -> Result<(), Failure> {
    let path = path(data_dir);
    let failed = |e| Failure::new(format!("cannot listen on {}", path.display())).because(e);
    // Nobody but its owner may connect, from the first moment on.
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
                        if let Err(error) = answer(stream, &requests).await {
                            tracing::debug!(%error, "a request on the node's socket broke off");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection on the node's socket");
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
            }
        }
    };
    tokio::spawn(cancel.run_until_cancelled_owned(accepting));
    Ok(())
}

async fn answer(stream: UnixStream, requests: &Requests) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read.take(REQUEST_BYTES_MAX))
        .read_line(&mut line)
        .await?;
    let request: Request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(e) => {
            let why = format!("{:?} is no request: {e}", line.trim());
            return say(&mut write, &Progress::Rejected { why }).await;
        }
    };
    let mut progress = requests.ask(request);
    while let Some(said) = progress.recv().await {
        say(&mut write, &said).await?;
        if said.is_last() {
            break;
        }
    }
    Ok(())
}

async fn say(write: &mut (impl AsyncWriteExt + Unpin), progress: &Progress) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(progress)?;
    line.push(b'\n');
    write.write_all(&line).await
}

/// Asks the node of this data directory; `told` hears each answer. The last one is returned.
pub async fn ask(
    data_dir: &Path,
    request: Request,
    mut told: impl FnMut(&Progress),
) -> Result<Progress, Failure> {
    let path = path(data_dir);
    let stream = UnixStream::connect(&path).await.map_err(|e| {
        let what = format!("no node runs here: cannot connect to {}", path.display());
        Failure::new(what).because(e)
    })?;
    let broken = |e: std::io::Error| Failure::new("the node broke off").because(e);
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(&request).map_err(|e| broken(e.into()))?;
    line.push(b'\n');
    write.write_all(&line).await.map_err(broken)?;
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await.map_err(broken)? {
        let said: Progress = serde_json::from_str(&line).map_err(|e| broken(e.into()))?;
        told(&said);
        if said.is_last() {
            return Ok(said);
        }
    }
    Err(Failure::new("the node ended before it had an answer"))
}
