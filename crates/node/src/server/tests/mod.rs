//! The server from outside: a client at one end of a pipe, a fake of the runtime's stream server at the other.

mod bounds;
mod exec;
mod logs;
mod port_forward;
mod stream_server;

use std::path::PathBuf;

use knarr_kubelet::runtime::{Container, ContainerState, PodRef};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::runtime::{ContainerDetail, ExecOptions, Result, RuntimeError};

/// One pod `p` in `ns` with one running container `c`, and another that has a terminal.
struct Node {
    streams: String,
    log: PathBuf,
}

const UID: &str = "11111111-2222-3333-4444-555555555555";

impl Pods for Node {
    fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        ((namespace, name) == ("ns", "p")).then(|| self.list().remove(0))
    }

    fn list(&self) -> Vec<Arc<Pod>> {
        let status = json!({
            "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "containerd://id-of-c", "state": {"running": {}},
        });
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": UID},
            "spec": {"containers": [{"name": "c"}, {"name": "terminal", "tty": true}, {"name": "new"}]},
            "status": {"containerStatuses": [status]},
        }));
        vec![Arc::new(pod.unwrap())]
    }
}

impl Node {
    fn detail(&self, name: &str) -> ContainerDetail {
        let state = ContainerState::Running {
            started_at: Timestamp::UNIX_EPOCH,
        };
        ContainerDetail {
            container: Container {
                id: format!("id-of-{name}").into(),
                sandbox_id: "sandbox".into(),
                pod: PodRef {
                    uid: UID.into(),
                    namespace: "ns".into(),
                    name: "p".into(),
                },
                name: name.into(),
                attempt: 0,
                hash: String::new(),
                self_fenced: None,
                state,
                created_at: Timestamp::UNIX_EPOCH,
                image: "i".into(),
                image_id: "i".into(),
            },
            log_path: self.log.display().to_string(),
            mounts: Vec::new(),
            pid: None,
        }
    }
}

#[async_trait]
impl Containers for Node {
    async fn container(&self, id: &str) -> Result<ContainerDetail> {
        Ok(self.detail(id.trim_start_matches("id-of-")))
    }

    async fn find(&self, _: &str, _: &str, container: &str) -> Result<ContainerDetail> {
        match container {
            "c" | "terminal" => Ok(self.detail(container)),
            other => Err(RuntimeError::not_found("container", other)),
        }
    }

    async fn running(&self) -> Result<Vec<Container>> {
        Ok(vec![self.detail("c").container])
    }

    async fn exec_url(&self, _: &str, options: &ExecOptions) -> Result<String> {
        Ok(format!("{}/{}", self.streams, options.command.join("/")))
    }

    async fn attach_url(&self, id: &str, _: &ExecOptions) -> Result<String> {
        Ok(format!("{}/attach/{id}", self.streams))
    }

    async fn netns(&self, _: &str, _: &str) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    async fn reopen_log(&self, _: &str) -> Result<()> {
        Ok(())
    }

    /// Its log contains it.
    async fn exited(&self, _: &str) {
        if self.log.ends_with("endless.log") {
            std::future::pending().await
        }
    }
}

/// A connection to a server with that node.
async fn dial(streams: String, log: PathBuf) -> DuplexStream {
    let node = Arc::new(Node { streams, log });
    let clock: Clock = Arc::new(|| Timestamp::UNIX_EPOCH);
    let server = Server::new(node.clone(), node, clock);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { server.serve(theirs).await });
    ours
}

/// Sends a request and reads the answer's head.
async fn ask(io: &mut DuplexStream, request: &str, headers: &[(&str, &str)]) -> String {
    let mut text = format!("{request} HTTP/1.1\r\nHost: node\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    io.write_all(format!("{text}\r\n").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(io.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

const WEBSOCKET: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
const SPDY: [(&str, &str); 2] = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];

/// Status and body of an answer that is no upgrade.
async fn error_of(request: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut io = dial("http://127.0.0.1:1".into(), "/nowhere".into()).await;
    let mut headers = headers.to_vec();
    if !headers.iter().any(|(name, _)| *name == "Connection") {
        headers.push(("Connection", "close"));
    }
    let head = ask(&mut io, request, &headers).await;
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    io.read_exact(&mut body).await.unwrap();
    (head[9..12].parse().unwrap(), String::from_utf8(body).unwrap())
}

#[tokio::test]
async fn errors_have_the_kubelets_messages() {
    let upgrade = WEBSOCKET;
    for (request, headers, code, text) in [
        ("GET /healthz", &[][..], 200, "ok"),
        ("GET /nothing", &[], 404, "404 page not found"),
        ("DELETE /pods", &[], 405, "405: Method Not Allowed"),
        (
            "GET /exec/ns/p/c?command=x",
            &upgrade,
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("GET /exec/ns/q/c?output=1", &upgrade, 404, "pod does not exist"),
        (
            "GET /exec/ns/p/other-uid/c?output=1",
            &upgrade,
            404,
            "pod not found",
        ),
        (
            "GET /exec/ns/p/new?output=1",
            &upgrade,
            500,
            "container not found (\"new\")",
        ),
        (
            "GET /attach/ns/p/new?output=1",
            &upgrade,
            500,
            "container new not found in pod p_ns",
        ),
        ("GET /exec/ns/p/c?output=1", &[], 400, "Upgrade request required"),
        ("GET /portForward/ns/p", &[], 400, "Upgrade request required"),
        (
            "GET /portForward/ns/p",
            &upgrade,
            400,
            "query parameter \"port\" is required",
        ),
        ("GET /containerLogs/ns/q/c", &[], 404, "pod \"q\" does not exist"),
        (
            "GET /containerLogs/ns/p/x",
            &[],
            404,
            "container \"x\" not found in pod \"p\"",
        ),
        (
            "GET /containerLogs/ns/p/new",
            &[],
            400,
            "container \"new\" in pod \"p\" is not available",
        ),
        (
            "GET /containerLogs/ns/p/c?limitBytes=0",
            &[],
            422,
            "limitBytes: Invalid value: 0: must be greater than 0",
        ),
    ] {
        assert_eq!(
            error_of(request, headers).await,
            (code, text.to_string()),
            "{request}"
        );
    }
    let (code, text) = error_of("GET /exec/ns/p/c?command=x&output=1", &upgrade).await;
    assert_eq!(code, 500);
    let expected = "connecting to the runtime's stream server at 127.0.0.1:1: ";
    assert!(text.starts_with(expected), "{text}");
    let mut unknown = SPDY.to_vec();
    unknown.push(("X-Stream-Protocol-Version", "v9.channel.k8s.io"));
    assert_eq!(error_of("POST /exec/ns/p/c?output=1", &unknown).await.0, 403);
}

#[tokio::test]
async fn pods_are_listed_as_the_api_has_them() {
    let (code, body) = error_of("GET /pods", &[]).await;
    let list: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (code, &list["kind"], &list["apiVersion"]),
        (200, &json!("PodList"), &json!("v1"))
    );
    assert_eq!(list["items"][0]["metadata"]["uid"], UID);
}

/// The answer to a request, of a server with settings to show.
async fn answer(request: &str) -> String {
    let node = Arc::new(Node {
        streams: String::new(),
        log: PathBuf::new(),
    });
    let server = Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH));
    let server = server.configured(&json!({"kind": "KubeletConfiguration", "maxPods": 7}));
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { server.serve(theirs).await });
    io.write_all(format!("{request} HTTP/1.0\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn l13_the_settings_that_hold_are_shown_as_kubelets_show_them() {
    let shown = answer("GET /configz").await;
    let (head, body) = shown.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("200 OK") && head.contains("application/json"),
        "{head}"
    );
    assert_eq!(
        body,
        r#"{"kubeletconfig":{"kind":"KubeletConfiguration","maxPods":7}}"#
    );
    assert_eq!(error_of("GET /configz", &[]).await.0, 404, "none were given");
    assert_eq!(error_of("GET /configz/x", &[]).await.0, 404);
}

#[tokio::test]
async fn l13_healthz_answers_whatever_the_query() {
    let well = answer("HEAD /healthz").await;
    assert!(
        well.starts_with("HTTP/1.0 200 OK") && well.ends_with("\r\n\r\n"),
        "{well}"
    );
    assert!(answer("HEAD /pods").await.starts_with("HTTP/1.0 405"));
    assert!(answer("POST /healthz").await.starts_with("HTTP/1.0 405"));
}

#[tokio::test]
async fn the_node_in_this_process_is_dialled_by_name() {
    let node = Arc::new(Node {
        streams: String::new(),
        log: PathBuf::new(),
    });
    let server = Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH));
    let dialer = InProcess {
        node: "here".into(),
        server,
    };
    let mut io = dialer.dial("here").await.unwrap();
    io.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.0 200 OK") && answer.ends_with("ok"),
        "{answer}"
    );
    let error = dialer.dial("there").await.err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_disabled_handler_answers_with_the_kubelets_message() {
    let error = |debugging, system_logs, path: &str| {
        let handlers = EnabledHandlers {
            debugging,
            system_logs,
        };
        let error_of = handlers.check(&Target::parse(path).unwrap()).err();
        error_of.map(|r| (r.code.as_u16(), r.text))
    };
    let no_debugging = Some((405, "Debug endpoints are disabled.".to_string()));
    let no_logs = Some((405, "logs endpoint is disabled.".to_string()));
    for (debugging, system_logs, path, want) in [
        (true, true, "/exec/ns/p/c", None),
        (true, true, "/logs/", None),
        (false, true, "/exec/ns/p/c", no_debugging.clone()),
        (false, true, "/attach/ns/p/c", no_debugging.clone()),
        (false, true, "/portForward/ns/p", no_debugging.clone()),
        (false, true, "/containerLogs/ns/p/c", no_debugging.clone()),
        (false, true, "/logs/", no_debugging.clone()),
        (false, true, "/runningpods", no_debugging),
        (false, false, "/stats/summary", None),
        (false, false, "/healthz", None),
        (true, false, "/logs/", no_logs),
        (true, false, "/containerLogs/ns/p/c", None),
    ] {
        assert_eq!(error(debugging, system_logs, path), want, "{path}");
    }
}
