//! A thousand watchers over HTTPS, each on a connection of its own.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;

use super::load::{Connection, Server};
use super::start;
use crate::calibration::Basis;
use crate::process::{LIMIT, Result};
use crate::report::{Report, Target};

const WATCHERS: usize = 1_000;
/// Connections that write, each a ConfigMap of its own.
const WRITERS: usize = 64;
/// In all, each delivered to every watcher.
const UPDATES: usize = 6_000;
/// Updates that may be on their way to the slowest reader: less than what the server keeps for one.
const AHEAD: usize = 400;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";

pub async fn report() -> Result<Report> {
    let mut report = Report::new(
        "api, watches",
        format!(
            "{WATCHERS} watches of ConfigMaps over HTTPS, one a connection; {WRITERS} connections update small ones of their \
own, {UPDATES} times in all, at most {AHEAD} updates ahead of the slowest reader; one watcher more reads nothing"
        ),
    );
    let (knarr, server) = start().await?;
    let before = knarr.memory_mb()?;
    let mut watches = Vec::with_capacity(WATCHERS);
    for _ in 0..WATCHERS {
        watches.push(watch(&server).await?);
    }
    report
        .record(
            "memory of an idle watch",
            (knarr.memory_mb()? - before) * 1000.0 / WATCHERS as f64,
            "KB",
            Basis::None,
        )
        .target(Target::AtMost(30.0));
    // Kept, and never read.
    let _slow = watch(&server).await?;

    let delivered: Vec<Cell<usize>> = vec![Cell::new(0); WATCHERS];
    let progress = tokio::sync::Notify::new();
    let begin = Instant::now();
    let readers = watches
        .iter_mut()
        .zip(&delivered)
        .map(|((_, body), delivered)| read(body, delivered, &progress));
    let writers = write(&server, &delivered, &progress);
    let (read, written) = tokio::time::timeout(
        LIMIT,
        futures::future::join(futures::future::try_join_all(readers), writers),
    )
    .await?;
    written?;
    read?;
    let took = begin.elapsed().as_secs_f64();
    let events: usize = delivered.iter().map(Cell::get).sum();
    report
        .record("events delivered", events as f64 / took, "/s", Basis::TwoCpus)
        .target(Target::AtLeast(300_000.0));
    report.record("updates", UPDATES as f64 / took, "/s", Basis::TwoCpus);
    let behind = delivered.iter().filter(|t| t.get() < UPDATES).count();
    report
        .record("watchers that fell behind", behind as f64, "", Basis::None)
        .target(Target::AtMost(0.0));
    Ok(report)
}

async fn watch(server: &Server) -> Result<(Connection, Incoming)> {
    let mut connection = server.connect().await?;
    let body = connection
        .stream(
            Method::GET,
            &format!("{COLLECTION}?watch=1&resourceVersion=0&labelSelector=bench=watches"),
            Bytes::new(),
        )
        .await?;
    Ok((connection, body))
}

/// Counts events, which are lines, until all were delivered. Ends early where the server ends the watch.
async fn read(body: &mut Incoming, delivered: &Cell<usize>, progress: &tokio::sync::Notify) -> Result<()> {
    while delivered.get() < UPDATES {
        let Some(frame) = body.frame().await else { break };
        if let Some(data) = frame?.data_ref() {
            delivered.set(delivered.get() + data.iter().filter(|b| **b == b'\n').count());
            progress.notify_one();
        }
    }
    Ok(())
}

async fn write(server: &Server, delivered: &[Cell<usize>], progress: &tokio::sync::Notify) -> Result<()> {
    let config_map = |writer: usize, n: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("changing-{writer}"), "labels": {"bench": "watches"}},
            "data": {"n": n.to_string()},
        })
        .to_string()
        .into()
    };
    let mut connections = server.connections(WRITERS).await?;
    // The next update's number: an update, or the creation before a writer's first.
    let next = Cell::new(0);
    let writers = connections.iter_mut().enumerate().map(|(writer, c)| {
        let next = &next;
        let mut made = false;
        async move {
            loop {
                let n = next.get();
                if n >= UPDATES {
                    return Ok::<_, Box<dyn std::error::Error>>(());
                }
                let slowest = delivered.iter().map(Cell::get).min().unwrap_or(0);
                if n >= slowest + AHEAD {
                    // The readers notify; the timeout covers a notification that came before this wait.
                    let _ = tokio::time::timeout(Duration::from_millis(5), progress.notified()).await;
                    continue;
                }
                next.set(n + 1);
                if std::mem::replace(&mut made, true) {
                    let path = format!("{COLLECTION}/changing-{writer}");
                    c.send(Method::PUT, &path, config_map(writer, n)).await?;
                } else {
                    c.send(Method::POST, COLLECTION, config_map(writer, n)).await?;
                }
            }
        }
    });
    futures::future::try_join_all(writers).await.map(drop)
}
