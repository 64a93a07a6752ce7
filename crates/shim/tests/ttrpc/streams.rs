//! Input, output and terminals.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use containerd_shim_protos::api::{CloseIORequest, ResizePtyRequest};

use crate::pod::{Container, Pod, eventually, read_fifo, wait};

fn close_input(container: &Container, exec: &str) {
    let request = CloseIORequest {
        id: container.id.clone(),
        exec_id: exec.into(),
        stdin: true,
        ..CloseIORequest::default()
    };
    container.task.close_io(wait(), &request).unwrap();
}

#[test]
fn input_is_passed_on_until_it_is_closed() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    let (input, output) = (pod.fifo("in"), pod.fifo("out"));
    container
        .exec("cat", &["cat"], |request| {
            request.stdin = input.display().to_string();
            request.stdout = output.display().to_string();
        })
        .unwrap();
    let started = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_fifo(&output));
        container.start("cat").unwrap();
        reader.join().unwrap()
    });
    let mut writer = File::options().write(true).open(&input).unwrap();
    writer.write_all(b"one ").unwrap();
    drop(writer);
    // containerd was restarted; nothing has ended.
    std::thread::park_timeout(Duration::from_millis(100));
    let mut writer = File::options().write(true).open(&input).unwrap();
    writer.write_all(b"two").unwrap();
    close_input(&container, "cat");
    drop(writer);
    assert_eq!(started.join().unwrap(), b"one two");
    assert_eq!(container.wait("cat").unwrap().exit_status, 0);
    container.delete("cat").unwrap();
    container.end();
}

#[test]
fn an_exec_gets_a_terminal_of_the_size_that_is_asked_for() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    let (input, output) = (pod.fifo("in"), pod.fifo("out"));
    let script = "read go; stty size; tty >/dev/null && echo terminal; exit 5";
    container
        .exec("sh", &["sh", "-c", script], |request| {
            request.stdin = input.display().to_string();
            request.stdout = output.display().to_string();
            request.terminal = true;
        })
        .unwrap();
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_fifo(&output));
        container.start("sh").unwrap();
        reader.join().unwrap()
    });
    let resize = ResizePtyRequest {
        id: container.id.clone(),
        exec_id: "sh".into(),
        width: 123,
        height: 45,
        ..ResizePtyRequest::default()
    };
    container.task.resize_pty(wait(), &resize).unwrap();
    let mut writer = File::options().write(true).open(&input).unwrap();
    writer.write_all(b"go\n").unwrap();
    assert_eq!(container.wait("sh").unwrap().exit_status, 5);
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    assert!(text.contains("45 123") && text.contains("terminal"), "{text:?}");
    container.delete("sh").unwrap();
    container.end();
}

#[test]
fn a_container_with_a_terminal_can_be_spoken_with() {
    let Some(mut pod) = Pod::new() else { return };
    let (id, bundle) = pod.bundle("a", &["sh"], |spec| spec["process"]["terminal"] = true.into());
    let container = pod.start_shim(id, bundle);
    let (input, output) = (pod.fifo("in"), pod.fifo("out"));
    container
        .create(&pod, |request| {
            request.stdin = input.display().to_string();
            request.stdout = output.display().to_string();
            request.terminal = true;
        })
        .unwrap();
    let reader = read_fifo(&output);
    container.start("").unwrap();
    let mut writer = File::options().write(true).open(&input).unwrap();
    writer.write_all(b"echo $((6*7)); exit 6\n").unwrap();
    assert_eq!(container.wait("").unwrap().exit_status, 6);
    let text = String::from_utf8(reader.join().unwrap()).unwrap();
    assert!(text.contains("42\r\n"), "{text:?}");
    container.delete("").unwrap();
    container.shutdown();
}

#[test]
fn much_output_arrives_whole_while_readers_come_and_go() {
    let Some(mut pod) = Pod::new() else { return };
    const BYTES: usize = 200 << 20;
    let script = format!("yes 0123456789abcde | head -c {BYTES}");
    let (id, bundle) = pod.bundle("a", &["sh", "-c", &script], |_| {});
    let container = pod.start_shim(id, bundle);
    let output = pod.fifo("out");
    container
        .create(&pod, |request| request.stdout = output.display().to_string())
        .unwrap();
    let mut reader = File::open(&output).unwrap();
    container.start("").unwrap();
    let mut buffer = vec![0; 1 << 16];
    let (mut total, mut phase) = (0, 0);
    let expected = b"0123456789abcde\n".repeat(buffer.len() / 16 + 2);
    let began = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    loop {
        let length = reader.read(&mut buffer).unwrap();
        if length == 0 {
            break;
        }
        assert!(
            buffer[..length] == expected[total % 16..][..length],
            "after {total} bytes"
        );
        total += length;
        if phase < 3 && total / (BYTES / 4) > phase {
            phase += 1;
            // containerd is killed and comes back.
            drop(reader);
            std::thread::park_timeout(Duration::from_millis(100));
            reader = File::open(&output).unwrap();
        }
    }
    assert_eq!(total, BYTES);
    let ended = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    eprintln!(
        "{} MiB in about {} s, three pauses included",
        BYTES >> 20,
        ended.tv_sec - began.tv_sec
    );
    assert_eq!(container.wait("").unwrap().exit_status, 0);
    container.delete("").unwrap();
    container.shutdown();
}

#[test]
fn what_a_container_said_last_is_there_for_a_containerd_that_was_away() {
    let Some(mut pod) = Pod::new() else { return };
    let (id, bundle) = pod.bundle("a", &["echo", "last words"], |_| {});
    let container = pod.start_shim(id, bundle);
    let output = pod.fifo("out");
    container
        .create(&pod, |request| request.stdout = output.display().to_string())
        .unwrap();
    container.start("").unwrap();
    container.wait("").unwrap();
    std::thread::park_timeout(Duration::from_millis(500));
    assert_eq!(read_fifo(&output).join().unwrap(), b"last words\n");
    container.delete("").unwrap();
    container.shutdown();
}

#[test]
fn a_deletion_waits_for_output_but_not_for_ever() {
    let Some(mut pod) = Pod::new() else { return };
    let container = pod.create("a", &["sleep", "1000"], |_| {});
    container.start("").unwrap();
    let output = pod.fifo("out");
    // A process of the container keeps the pipe open.
    container
        .exec("e", &["sh", "-c", "sleep 1000 & echo started"], |request| {
            request.stdout = output.display().to_string();
        })
        .unwrap();
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_fifo(&output));
        container.start("e").unwrap();
        reader.join().unwrap()
    });
    assert_eq!(container.wait("e").unwrap().exit_status, 0);
    container.delete("e").unwrap();
    assert_eq!(reader.join().unwrap(), b"started\n");
    container.end();
    eventually("the shim exits", || {
        crate::pod::shims_in(&container.bundle).is_empty()
    });
}
