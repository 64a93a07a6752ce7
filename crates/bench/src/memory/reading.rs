//! Where a process's memory is: what the kernel counts, and what the metrics of the process itself say of it.

use http::Request;

use crate::process::{Knarr, Result};
use crate::table::{Align, lines, number};

/// Memory of a knarr at one time, in MB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// What the kernel counts as resident.
    pub resident: f64,
    /// The part of it that is not pages of the program's file: what the allocator has, and stacks.
    pub anonymous: f64,
    pub metrics: Metrics,
}

/// What `/metrics` shows; memory in MB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Held by the program.
    pub allocated: f64,
    /// Pages with allocations of the program: the rest of them is fragmentation.
    pub active: f64,
    /// These, metadata, and free pages that are not returned yet.
    pub resident: f64,
    pub metadata: f64,
    /// Stored objects of all kinds.
    pub objects: f64,
    /// Changes that the watch cache keeps.
    pub changes: f64,
    /// About how much memory these changes hold.
    pub changes_mb: f64,
}

impl Reading {
    pub async fn now(cluster: &Knarr, client: &kube::Client) -> Result<Self> {
        // Before the request, which allocates some megabytes.
        let (resident, anonymous) = (cluster.memory_mb()?, cluster.anonymous_mb()?);
        let text = client
            .request_text(Request::get("/metrics").body(Vec::new())?)
            .await?;
        Ok(Reading {
            resident,
            anonymous,
            metrics: Metrics::parse(&text)?,
        })
    }
}

impl Metrics {
    fn parse(text: &str) -> Result<Self> {
        let mb = |name: &str| sum(text, name).map(|bytes| bytes / 1e6);
        Ok(Metrics {
            allocated: mb("knarr_allocator_allocated_bytes")?,
            active: mb("knarr_allocator_active_bytes")?,
            resident: mb("knarr_allocator_resident_bytes")?,
            metadata: mb("knarr_allocator_metadata_bytes")?,
            objects: sum(text, "apiserver_resource_objects")?,
            changes: sum(text, "knarr_watch_cache_changes")?,
            changes_mb: mb("knarr_watch_cache_changes_bytes")?,
        })
    }
}

/// The sum of a metric's samples in Prometheus' text format, without timestamps. An error if it has none.
fn sum(text: &str, name: &str) -> Result<f64> {
    let mut values = text
        .lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter(|rest| rest.starts_with([' ', '{']))
        .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
        .peekable();
    if values.peek().is_none() {
        return Err(format!("/metrics has no {name}").into());
    }
    Ok(values.sum())
}

/// The readings by stage: what the program holds, and what the allocator has beyond that.
pub fn table(stages: &[(&str, Reading)]) -> String {
    let head = [
        "MB",
        "RSS",
        "anonymous",
        "held by objects",
        "fragmentation",
        "metadata",
        "free pages",
        "objects",
        "kept changes",
        "their MB",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(stages.iter().map(|(stage, reading)| {
        let Metrics {
            allocated,
            active,
            resident,
            metadata,
            objects,
            changes,
            changes_mb,
        } = reading.metrics;
        let mut row = vec![(*stage).to_owned()];
        row.extend(
            [
                reading.resident,
                reading.anonymous,
                allocated,
                active - allocated,
                metadata,
                resident - active - metadata,
                objects,
                changes,
                changes_mb,
            ]
            .map(number),
        );
        row
    }));
    let mut columns = vec![Align::Left];
    columns.resize(head.len(), Align::Right);
    lines(&rows, &columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP knarr_allocator_allocated_bytes [ALPHA] Bytes that the program has allocated.
# TYPE knarr_allocator_allocated_bytes gauge
knarr_allocator_allocated_bytes 60000000
knarr_allocator_active_bytes 7.5e7
knarr_allocator_resident_bytes 90000000
knarr_allocator_metadata_bytes 5000000
apiserver_resource_objects{group=\"\",resource=\"services\"} 3
apiserver_resource_objects{group=\"discovery.k8s.io\",resource=\"endpointslices\"} 4
knarr_watch_cache_changes{group=\"\",resource=\"services\"} 100
knarr_watch_cache_changes_bytes{group=\"\",resource=\"services\"} 1000000
";

    #[test]
    fn samples_are_added_up_by_the_whole_name_of_their_metric() {
        let metrics = Metrics::parse(TEXT).unwrap();
        let expected = Metrics {
            allocated: 60.0,
            active: 75.0,
            resident: 90.0,
            metadata: 5.0,
            objects: 7.0,
            changes: 100.0,
            changes_mb: 1.0,
        };
        assert_eq!(metrics, expected);
    }

    #[test]
    fn a_metric_that_is_missing_is_named() {
        let without = TEXT.replace("knarr_allocator_active_bytes", "other");
        let error = Metrics::parse(&without).unwrap_err().to_string();
        assert_eq!(error, "/metrics has no knarr_allocator_active_bytes");
    }

    #[test]
    fn the_table_splits_what_is_resident() {
        let reading = Reading {
            resident: 120.0,
            anonymous: 95.0,
            metrics: Metrics::parse(TEXT).unwrap(),
        };
        let table = table(&[("idle", reading)]);
        let cells = |n: usize| {
            table
                .lines()
                .nth(n)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
        };
        let values = [60.0, 15.0, 5.0, 10.0].map(number);
        assert_eq!(cells(1)[0], "idle");
        assert_eq!(cells(1)[3..7], values);
    }
}
