//! Bytes between kubectl and containers: logs, exec, attach, cp, port-forward.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::Outcome;
use crate::cluster::{Namespace, Scenario, eventually, has, same};
use crate::kubectl::{WEB, running};

pub const SCENARIOS: &[(&str, Scenario)] = &[
    ("logs_are_read_followed_and_limited", logs),
    ("exec_passes_input_output_errors_and_the_exit_code", exec),
    ("exec_with_a_terminal_is_a_terminal", exec_tty),
    ("attach_joins_the_running_process", attach),
    ("cp_brings_files_in_and_out", cp),
    ("port_forward_carries_connections", port_forward),
];

/// Kills a client that would run for ever.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn logs(ns: &Namespace) -> Outcome {
    // One stream only: the order of lines of standard output and error is not guaranteed.
    ns.apply(&WEB.replace(
        "echo hello; echo oops >&2;",
        "for i in 1 2 3 4 5; do echo line $i; done; echo oops;",
    ))?;
    running(ns, "web")?;
    has(
        &ns.eventually_run(&["logs", "web"], |t| t.contains("oops"))?,
        "line 1\nline 2\n",
    )?;
    same(&ns.run(&["logs", "web", "--tail=1"])?, "oops\n")?;
    has(&ns.run(&["logs", "web", "--timestamps"])?, "Z line 1\n")?;
    same(&ns.run(&["logs", "web", "--limit-bytes=6"])?, "line 1")?;
    has(&ns.run(&["logs", "-l", "app=web"])?, "line 5")?;
    let follow = ns
        .kubectl(&["logs", "-f", "web"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut follow = Running(follow);
    let mut lines = BufReader::new(follow.0.stdout.take().ok_or("no output")?).lines();
    same(&lines.next().ok_or("the log is empty")??, "line 1")?;
    ns.run(&["delete", "pod", "web", "--wait=false"])?;
    // It exits when the container does, and has its last lines.
    let rest: Vec<String> = lines.collect::<Result<_, _>>()?;
    same(rest.last().map_or("", String::as_str), "bye")?;
    if !follow.0.wait()?.success() {
        return Err("logs -f failed when the container exited".into());
    }
    Ok(())
}

fn exec(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    same(&ns.run(&["exec", "web", "--", "echo", "a b"])?, "a b\n")?;
    let big = "0123456789abcdef\n".repeat(40_000);
    let back = ns.run_with(&["exec", "-i", "web", "--", "cat"], &big)?;
    same(&back.len().to_string(), &big.len().to_string())?;
    let rejected = ns.run_failing(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"])?;
    has(&rejected, "out\n")?;
    has(&rejected, "err\n")?;
    has(&rejected, "command terminated with exit code 3")?;
    has(
        &ns.run_failing(&["exec", "web", "--", "no-such-program"])?,
        "no-such-program",
    )?;
    has(
        &ns.run_failing(&["exec", "web", "-c", "nope", "--", "true"])?,
        "container nope is not valid for pod web",
    )?;
    Ok(())
}

fn exec_tty(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    // `script` gives kubectl a terminal.
    let kubectl = ns.kubectl(&[
        "exec",
        "-it",
        "web",
        "--",
        "sh",
        "-c",
        "tty; until stty size 2>/dev/null | grep -v \"^0 0\"; do sleep 0.1; done",
    ]);
    let line = std::iter::once(kubectl.get_program()).chain(kubectl.get_args());
    let line: Vec<String> = line.map(|a| format!("'{}'", a.to_string_lossy())).collect();
    let line = format!("stty rows 33 cols 111; {}", line.join(" "));
    let mut script = std::process::Command::new("script");
    let out = script
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()?;
    let output = crate::cluster::text(&out);
    has(&output, "/dev/pts/")?;
    has(&output, "33 111")
}

fn attach(ns: &Namespace) -> Outcome {
    let listens = WEB.replace("name: web", "name: reader").replace(
        "      image:",
        "      stdin: true\n      stdinOnce: true\n      image:",
    );
    ns.apply(&listens.replace("while :; do sleep 0.1; done", "read x; echo got $x; sleep 1"))?;
    running(ns, "reader")?;
    let output = ns.run_with(&["attach", "-i", "reader"], "salt\n")?;
    has(&output, "got salt")
}

fn cp(ns: &Namespace) -> Outcome {
    ns.apply(WEB)?;
    running(ns, "web")?;
    let dir = tempfile::tempdir()?;
    let (there, back) = (dir.path().join("there"), dir.path().join("back"));
    let content: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&there, &content)?;
    ns.run(&["cp", &there.display().to_string(), "web:/tmp/file"])?;
    ns.run(&["cp", "web:/tmp/file", &back.display().to_string()])?;
    if std::fs::read(&back)? == content {
        Ok(())
    } else {
        Err("the file came back changed".into())
    }
}

fn port_forward(ns: &Namespace) -> Outcome {
    ns.apply(&WEB.replace(
        "echo hello;",
        "mkdir /w; echo ahoy > /w/index.html; httpd -p 8080 -h /w;",
    ))?;
    running(ns, "web")?;
    let forward = ns
        .kubectl(&["port-forward", "pod/web", ":8080"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut forward = Running(forward);
    let mut lines = BufReader::new(forward.0.stdout.take().ok_or("no output")?).lines();
    let line = lines.next().ok_or("port-forward printed nothing")??;
    let port = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|l| l.split(' ').next())
        .unwrap_or("");
    let port: u16 = port.parse().map_err(|_| format!("no port in {line:?}"))?;
    for _ in 0..3 {
        let mut answer = String::new();
        eventually("an answer through the forwarded port", || {
            answer.clear();
            get(port).is_ok_and(|a| {
                answer = a;
                true
            })
        })?;
        has(&answer, "ahoy")?;
    }
    Ok(())
}

fn get(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.is_empty() {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(answer)
    }
}
