//! Logs, exec, attach and port-forward through the kubelet's server into real containers: a containerd of the test's
//! own, one pod, clients that speak as kubectl does. Needs root, containerd, runc, CNI plugins and busybox-static.

#![allow(
    clippy::disallowed_methods,
    reason = "tests create the files that they read by name"
)]
#![allow(clippy::unwrap_used)] // a test may panic anywhere; clippy knows that only inside test functions

mod client;
mod pod;

use std::time::Duration;

use client::{Channels, Spdy, port_forward};
use knarr_node::logs::rotate::{Policy, rotate_if_large};
use knarr_node::server::RuntimeContainers;
use pod::{NAME, Node};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l13_streams_and_logs_reach_real_containers() {
    let node = Node::start().await;
    // Everything is taken down also when a check fails.
    let checks = tokio::spawn({
        let node = node.clone();
        async move {
            node.run("web", "echo started; nc -ll -p 8080 -e cat", false, false)
                .await;
            exec_cat_ends(&node).await;
            exec_ends_when_stdin_is_not_read(&node).await;
            exit_codes_arrive(&node).await;
            a_terminal_is_resized(&node).await;
            a_missing_program_is_reported(&node).await;
            attach_talks_to_the_container(&node).await;
            ports_are_forwarded(&node).await;
            logs_follow_across_rotation(&node).await;
        }
    });
    let checked = timeout(Duration::from_secs(120), checks).await;
    node.stop().await;
    checked.expect("checks take more than two minutes").unwrap();
}

fn exec(command: &[&str], streams: &str) -> String {
    let encode = |word| percent_encoding::utf8_percent_encode(word, percent_encoding::NON_ALPHANUMERIC);
    let command: String = command
        .iter()
        .map(|word| format!("command={}&", encode(word)))
        .collect();
    format!("/exec/default/{NAME}/web?{command}{streams}")
}

fn is_success(status: &str) -> bool {
    serde_json::from_str::<Value>(status).unwrap()["status"] == "Success"
}

async fn exec_cat_ends(node: &Node) {
    let path = exec(&["sh", "-c", "cat; echo end >&2"], "input=1&output=1&error=1");
    let file: Vec<u8> = (0..3_000_000u32).map(|n| (n % 253) as u8).collect();

    let mut client = Channels::open(node, &path, "v5.channel.k8s.io").await;
    let ended = client.send_file_and_end(0, &file).await;
    assert!(
        ended.stdout == file,
        "WebSocket: {} bytes came back",
        ended.stdout.len()
    );
    assert_eq!(ended.stderr, b"end\n");
    assert!(is_success(&ended.status), "{}", ended.status);

    let mut client = Spdy::open(node, &path, &["error", "stdin", "stdout", "stderr"]).await;
    let mut stdin = client.take("stdin");
    let (sent, stdout) = tokio::join!(
        async {
            stdin.write_all(&file).await.unwrap();
            stdin.shutdown().await.unwrap();
        },
        client.read("stdout"),
    );
    let () = sent;
    assert!(stdout == file, "SPDY: {} bytes came back", stdout.len());
    assert_eq!(client.read("stderr").await, b"end\n");
    assert!(is_success(
        &String::from_utf8(client.read("error").await).unwrap()
    ));
}

/// `kubectl exec -i … -- true < file`. No more than a FIFO holds: with more, containerd 1.6 never reports that the
/// command has exited.
async fn exec_ends_when_stdin_is_not_read(node: &Node) {
    let path = exec(&["true"], "input=1&output=1&error=1");
    let mut client = Channels::open(node, &path, "v5.channel.k8s.io").await;
    let ended = client.send_file_and_end(0, &[b'y'; 30_000]).await;
    assert!(is_success(&ended.status), "{}", ended.status);
}

async fn exit_codes_arrive(node: &Node) {
    let path = exec(
        &["sh", "-c", "echo out; echo err >&2; exit 3"],
        "output=1&error=1",
    );
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let ended = Channels::open(node, &path, protocol).await.rest().await;
        assert_eq!((&*ended.stdout, &*ended.stderr), (&b"out\n"[..], &b"err\n"[..]));
        let status: Value = serde_json::from_str(&ended.status).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode", "{status}");
        assert_eq!(
            status["details"]["causes"],
            json!([{"reason": "ExitCode", "message": "3"}])
        );
    }
}

async fn a_terminal_is_resized(node: &Node) {
    let path = exec(&["sh"], "input=1&output=1&tty=1");
    let mut client = Channels::open(node, &path, "v5.channel.k8s.io").await;
    client.send(4, br#"{"Width":101,"Height":41}"#).await;
    // The size arrives on another channel than the command's start: the command polls it.
    client
        .send(0, b"until stty size | grep 101; do sleep 0.1; done; exit 5\n")
        .await;
    let ended = client.rest().await;
    let screen = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(screen.contains("\n41 101\r\n"), "{screen:?}");
    assert!(ended.status.contains(r#""message":"5""#), "{}", ended.status);
}

async fn a_missing_program_is_reported(node: &Node) {
    let path = exec(&["/no/such/program"], "output=1&error=1");
    let ended = Channels::open(node, &path, "v5.channel.k8s.io")
        .await
        .rest()
        .await;
    let status: Value = serde_json::from_str(&ended.status).unwrap();
    assert_eq!(
        (&status["status"], &status["code"]),
        (&json!("Failure"), &json!(500)),
        "{status}"
    );
    assert!(
        status["message"].as_str().unwrap().contains("/no/such/program"),
        "{status}"
    );
}

async fn attach_talks_to_the_container(node: &Node) {
    let script = "while read line; do echo \"got $line\"; done; echo end of input";
    node.run("talker", script, true, false).await;
    let path = format!("/attach/default/{NAME}/talker?input=1&output=1&error=1");
    let mut client = Channels::open(node, &path, "v5.channel.k8s.io").await;
    let ended = client.send_file_and_end(0, b"one\ntwo\n").await;
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "got one\ngot two\nend of input\n"
    );
    assert!(is_success(&ended.status), "{}", ended.status);

    node.run("screen", "read line; echo \"read $line\"", true, true)
        .await;
    let path = format!("/attach/default/{NAME}/screen?input=1&output=1&tty=1");
    let mut client = Channels::open(node, &path, "v4.channel.k8s.io").await;
    client.send(0, b"typed\n").await;
    let screen = String::from_utf8_lossy(&client.rest().await.stdout).into_owned();
    assert!(screen.contains("read typed\r\n"), "{screen:?}");
}

async fn ports_are_forwarded(node: &Node) {
    let connection = port_forward(node).await;
    for n in 0..3 {
        let (mut data, _error) = connection.pair(8080, n).await;
        let question = vec![b'0' + n as u8; 100_000];
        let mut answer = vec![0; question.len()];
        data.write_all(&question).await.unwrap();
        timeout(LIMIT, data.read_exact(&mut answer))
            .await
            .expect("no answer")
            .unwrap();
        assert!(answer == question);
    }
    let (_data, mut error) = connection.pair(9, 9).await;
    let mut text = String::new();
    timeout(LIMIT, error.read_to_string(&mut text))
        .await
        .expect("no error")
        .unwrap();
    assert!(
        text.contains("localhost:9 inside the pod's network: Connection refused"),
        "{text}"
    );
}

async fn logs_follow_across_rotation(node: &Node) {
    let script = "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.01; done";
    let id = node.run("counter", script, false, false).await;
    let io = node
        .get(&format!("/containerLogs/default/{NAME}/counter?follow=true"))
        .await;
    let mut lines = BufReader::new(io).lines();
    let mut seen = Vec::new();
    let mut rotations = 0;
    let policy = Policy {
        max_bytes: 1,
        ..Policy::default()
    };
    loop {
        let line = timeout(LIMIT, lines.next_line())
            .await
            .expect("the log does not go on")
            .unwrap();
        let Some(line) = line else { break };
        if let Some(number) = line.strip_prefix("line ") {
            seen.push(number.parse::<usize>().unwrap());
        }
        // Every hundredth line a rotation, then the end.
        if seen.len() >= (rotations + 1) * 100 && rotations < 3 {
            let containers = RuntimeContainers(node.runtime.clone());
            let log = node.log("counter");
            rotate_if_large(&containers, &id, &log, policy, jiff::Timestamp::now())
                .await
                .unwrap();
            rotations += 1;
            if rotations == 3 {
                let runtime = node.runtime.clone();
                let id = id.clone();
                tokio::spawn(async move { runtime.stop_container(&id, Duration::from_secs(1)).await });
            } else {
                // Names have the time to the second.
                tokio::time::sleep(Duration::from_millis(1100)).await;
            }
        }
    }
    let expected: Vec<usize> = (1..=seen.len()).collect();
    assert!(seen == expected, "lines are missing or twice: {seen:?}");
    assert_eq!(rotations, 3);
}
