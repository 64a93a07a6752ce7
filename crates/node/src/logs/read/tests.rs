//! A log is written by the test as the runtime would, and read as a user would.

use std::fs::{File as StdFile, OpenOptions};
use std::io::Write;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;

struct Container {
    directory: TempDir,
    exited: Arc<Notify>,
}

impl Container {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        StdFile::create(directory.path().join("0.log")).unwrap();
        Container {
            directory,
            exited: Arc::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("0.log")
    }

    fn write(&self, lines: &[&str]) {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path())
            .unwrap();
        file.write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
    }

    fn rotate(&self) {
        std::fs::rename(self.path(), self.directory.path().join("0.log.20260101-000000")).unwrap();
        StdFile::create(self.path()).unwrap();
    }

    async fn read(&self, options: Options) -> String {
        let mut follower = self.follow(options).await;
        self.exited.notify_one();
        follower.rest().await
    }

    async fn follow(&self, options: Options) -> Follower {
        let (out, pieces) = mpsc::channel(4);
        let log = read(&self.path(), options).await.unwrap();
        let exited = self.exited.clone();
        let task = tokio::spawn(async move { log.send(async move { exited.notified().await }, out).await });
        Follower { pieces, task }
    }
}

struct Follower {
    pieces: mpsc::Receiver<Bytes>,
    task: tokio::task::JoinHandle<Result<(), LogError>>,
}

impl Follower {
    async fn piece(&mut self) -> String {
        let piece = timeout(Duration::from_secs(5), self.pieces.recv())
            .await
            .expect("nothing new");
        String::from_utf8(piece.expect("ended").into()).unwrap()
    }

    async fn rest(&mut self) -> String {
        let all = async {
            let mut text = Vec::new();
            while let Some(piece) = self.pieces.recv().await {
                text.extend_from_slice(&piece);
            }
            text
        };
        let text = timeout(Duration::from_secs(5), all)
            .await
            .expect("the read continues");
        (&mut self.task).await.unwrap().unwrap();
        String::from_utf8(text).unwrap()
    }
}

const LOG: &[&str] = &[
    "2026-01-01T00:00:01.1Z stdout F one",
    "2026-01-01T00:00:02.2Z stderr F two",
    "2026-01-01T00:00:03.3Z stdout P thr",
    "not a log line",
    "2026-01-01T00:00:03.4Z stdout F ee",
    "2026-01-01T00:00:04.4Z stdout F four",
];

fn follow() -> Options {
    Options {
        follow: true,
        ..Options::default()
    }
}

#[tokio::test]
async fn l13_logs_contain_the_requested_part() {
    let container = Container::new();
    container.write(LOG);
    let all = Options::default();
    for (options, shown) in [
        (all.clone(), "one\ntwo\nthree\nfour\n"),
        (
            Options {
                tail_lines: Some(2),
                ..all.clone()
            },
            "three\nfour\n",
        ),
        (
            Options {
                tail_lines: Some(0),
                ..all.clone()
            },
            "",
        ),
        (
            Options {
                limit_bytes: Some(6),
                ..all.clone()
            },
            "one\ntw",
        ),
        (
            Options {
                since: "2026-01-01T00:00:03.3Z".parse().ok(),
                ..all.clone()
            },
            "three\nfour\n",
        ),
        (
            Options {
                stream: Some(Stream::Stderr),
                ..all.clone()
            },
            "two\n",
        ),
        (
            Options {
                stream: Some(Stream::Stdout),
                ..all.clone()
            },
            "one\nthree\nfour\n",
        ),
        (
            Options {
                timestamps: true,
                tail_lines: Some(2),
                ..all.clone()
            },
            "2026-01-01T00:00:03.300000000Z three\n2026-01-01T00:00:04.400000000Z four\n",
        ),
        (follow(), "one\ntwo\nthree\nfour\n"),
        (
            Options {
                tail_lines: Some(1),
                ..follow()
            },
            "four\n",
        ),
    ] {
        assert_eq!(container.read(options.clone()).await, shown, "{options:?}");
    }
}

#[tokio::test]
async fn a_line_without_its_end_is_shown_when_no_more_can_come() {
    let container = Container::new();
    std::fs::write(container.path(), "2026-01-01T00:00:01Z stdout F cut").unwrap();
    assert_eq!(container.read(Options::default()).await, "cut");
    assert_eq!(container.read(follow()).await, "cut");
}

#[tokio::test]
async fn l13_following_continues_as_the_log_grows_and_ends_with_the_container() {
    let container = Container::new();
    container.write(&LOG[..1]);
    let mut follower = container.follow(follow()).await;
    assert_eq!(follower.piece().await, "one\n");
    container.write(&LOG[1..2]);
    assert_eq!(follower.piece().await, "two\n");
    container.write(&LOG[5..]);
    container.exited.notify_one();
    assert_eq!(follower.rest().await, "four\n");
}

#[tokio::test]
async fn following_loses_nothing_to_rotation() {
    let container = Container::new();
    let mut follower = container.follow(follow()).await;
    let mut expected = String::new();
    for n in 0..30 {
        let line = format!("2026-01-01T00:00:01Z stdout F line {n}");
        container.write(&[&line]);
        expected += &format!("line {n}\n");
        if n % 10 == 9 {
            container.rotate();
            // As long as a rotation takes to be noticed; two within that time would skip a file.
            let mut seen = String::new();
            container.write(&["2026-01-01T00:00:01Z stdout F rotated"]);
            expected += "rotated\n";
            while !seen.ends_with("rotated\n") {
                seen += &follower.piece().await;
            }
            assert_eq!(seen, std::mem::take(&mut expected));
        }
    }
    container.exited.notify_one();
    assert_eq!(follower.rest().await, "");
}

#[tokio::test]
async fn a_disconnected_follower_ends_the_read() {
    let container = Container::new();
    let Follower { pieces, task } = container.follow(follow()).await;
    drop(pieces);
    timeout(Duration::from_secs(5), task)
        .await
        .expect("still reading")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_missing_log_is_reported_by_name() {
    let error = read(Path::new("/no/such/0.log"), Options::default())
        .await
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "failed to open log file \"/no/such/0.log\"");
}

#[tokio::test]
async fn an_endless_line_is_passed_over() {
    let container = Container::new();
    let mut log = vec![b'x'; 2 * MAX_LINE_BYTES];
    log.extend_from_slice(b"\n2026-01-01T00:00:01Z stdout F after\n");
    std::fs::write(container.path(), log).unwrap();
    assert_eq!(container.read(Options::default()).await, "after\n");
}
