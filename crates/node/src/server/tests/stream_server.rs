//! A fake of containerd's stream server: HTTP on the loopback address, upgraded to SPDY, with a few commands.

use std::collections::HashMap;

use super::*;
use crate::streams::spdy::{Connection, Role, Stream};
use crate::streams::upgrade::{Upgrade, negotiate};

/// Its address. Lives as long as the test's runtime.
pub(super) async fn start() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(socket));
        }
    });
    format!("http://{address}")
}

async fn serve(socket: tokio::net::TcpStream) {
    let service = service_fn(|mut request: Request<Incoming>| async move {
        let upgrade = negotiate(request.headers(), &["v4.channel.k8s.io"], &[]).unwrap();
        assert!(
            matches!(upgrade, Upgrade::Spdy { protocol: Some(_) }),
            "{upgrade:?}"
        );
        let upgrading = hyper::upgrade::on(&mut request);
        let command = request.uri().path().trim_matches('/').to_string();
        tokio::spawn(async move { run(&command, TokioIo::new(upgrading.await.unwrap())).await });
        Ok::<_, Infallible>(body(upgrade.response(), Bytes::new()))
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
    connection.with_upgrades().await.unwrap();
}

async fn run(command: &str, io: TokioIo<hyper::upgrade::Upgraded>) {
    let (connection, mut incoming) = Connection::start(io, Role::Server).unwrap();
    let mut streams: HashMap<String, Stream> = HashMap::new();
    let mut take = async |kind: &str| loop {
        if let Some(stream) = streams.remove(kind) {
            return stream;
        }
        let stream = incoming.next().await.unwrap().accept().unwrap();
        streams.insert(stream.headers().get("streamType").unwrap().to_string(), stream);
    };
    let mut error = take("error").await;
    let status = match command {
        // Ends only when stdin does.
        "cat" => {
            let (mut stdin, mut stdout) = (take("stdin").await, take("stdout").await);
            let stderr = take("stderr").await;
            tokio::io::copy(&mut stdin, &mut stdout).await.unwrap();
            stdout.shutdown().await.unwrap();
            drop(stderr);
            json!({"status": "Success"})
        }
        "exit/3" => {
            let (mut stdout, mut stderr) = (take("stdout").await, take("stderr").await);
            stdout.write_all(b"out").await.unwrap();
            stderr.write_all(b"err").await.unwrap();
            let (_, _) = tokio::join!(stdout.shutdown(), stderr.shutdown());
            json!({
                "status": "Failure", "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code: exit status 3",
                "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
            })
        }
        // Shows the terminal's first two sizes.
        "sizes" | "attach/id-of-terminal" => {
            let (mut stdout, mut resize) = (take("stdout").await, take("resize").await);
            let mut sizes = [0; 2 * "{\"Width\":80,\"Height\":24}".len()];
            resize.read_exact(&mut sizes).await.unwrap();
            stdout.write_all(&sizes).await.unwrap();
            stdout.shutdown().await.unwrap();
            json!({"status": "Success"})
        }
        // Reads and writes nothing until its client has disconnected.
        "sleep" => {
            let _unread = (take("stdin").await, take("stdout").await);
            return connection.closed().await;
        }
        // Breaks off in the middle.
        "die" => return,
        other => panic!("no such command: {other}"),
    };
    error.write_all(status.to_string().as_bytes()).await.unwrap();
    error.shutdown().await.unwrap();
    // As containerd does: all that is left is torn down.
    drop((error, streams));
    connection.close().await;
}
