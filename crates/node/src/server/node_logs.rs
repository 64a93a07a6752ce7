//! The node's own logs, below `/var/log`: directories as lists of links, files as they are.

use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use futures::stream;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::AsyncReadExt;

use super::response::{Body, HttpError, body};

const ROOT: &str = "/var/log";
/// Read and sent at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// `path` is what follows `/logs/`.
pub(super) async fn serve(path: &str) -> Result<Response<Body>, HttpError> {
    serve_from(Path::new(ROOT), path).await
}

async fn serve_from(root: &Path, path: &str) -> Result<Response<Body>, HttpError> {
    let desired = below(root, path)?;
    let not_found = |_| HttpError::not_found("404 page not found");
    let meta = crate::host_fs::nonblocking::metadata(&desired)
        .await
        .map_err(not_found)?;
    if meta.is_dir() {
        return directory(&desired, path).await;
    }
    if !meta.is_file() {
        return Err(HttpError::not_found("404 page not found"));
    }
    let file = crate::host_fs::nonblocking::open(&desired)
        .await
        .map_err(not_found)?;
    let pieces = stream::unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE_BYTES];
        match file.read(&mut piece).await {
            Ok(0) => None,
            Ok(n) => {
                piece.truncate(n);
                Some((Ok(Frame::data(Bytes::from(piece))), file))
            }
            Err(error) => {
                tracing::debug!(%error, "reading a log of the node failed");
                None
            }
        }
    });
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    Ok(response)
}

/// Nothing outside of the directory can be reached by name.
fn below(root: &Path, path: &str) -> Result<PathBuf, HttpError> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = |c: Component| matches!(c, Component::Normal(_));
    if !relative.components().all(plain) {
        return Err(HttpError::bad_request("invalid URL path"));
    }
    Ok(root.join(relative))
}

async fn directory(directory: &Path, path: &str) -> Result<Response<Body>, HttpError> {
    // Links in it are relative.
    if !path.is_empty() && !path.ends_with('/') {
        let last = directory
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let head = Response::builder()
            .status(StatusCode::MOVED_PERMANENTLY)
            .header(LOCATION, format!("{last}/"));
        return Ok(body(head, Bytes::new()));
    }
    let mut names = Vec::new();
    let mut entries = crate::host_fs::nonblocking::read_dir(directory)
        .await
        .map_err(HttpError::internal)?;
    while let Some(entry) = entries.next_entry().await.map_err(HttpError::internal)? {
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type().await.is_ok_and(|t| t.is_dir()) {
            name.push('/');
        }
        names.push(name);
    }
    names.sort();
    let links: String = names
        .iter()
        .map(|name| {
            let shown = name
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&#34;");
            format!("<a href=\"{shown}\">{shown}</a>\n")
        })
        .collect();
    let head = Response::builder().header(CONTENT_TYPE, "text/html; charset=utf-8");
    Ok(body(
        head,
        format!(
            "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n{links}</pre>\n"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(root: &Path, path: &str) -> Result<(StatusCode, String), u16> {
        let response = serve_from(root, path).await.map_err(|e| e.code.as_u16())?;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Ok((status, String::from_utf8(bytes.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn l13_only_files_below_var_log_are_listed_and_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("apt")).unwrap();
        std::fs::write(dir.path().join("apt/a<b.log"), "one\n").unwrap();
        std::fs::write(dir.path().join("syslog"), "x".repeat(200_000)).unwrap();
        let (_, listed) = read(dir.path(), "").await.unwrap();
        assert!(
            listed.contains("<a href=\"apt/\">apt/</a>\n<a href=\"syslog\">"),
            "{listed}"
        );
        assert!(read(dir.path(), "apt/").await.unwrap().1.contains("a&lt;b.log"));
        assert_eq!(
            read(dir.path(), "apt").await.unwrap().0,
            StatusCode::MOVED_PERMANENTLY
        );
        assert_eq!(read(dir.path(), "apt/a<b.log").await.unwrap().1, "one\n");
        assert_eq!(read(dir.path(), "syslog").await.unwrap().1.len(), 200_000);
        assert_eq!(read(dir.path(), "../etc/passwd").await, Err(400));
        assert_eq!(read(dir.path(), "none").await, Err(404));
    }
}
