//! Metrics under CoreDNS' names, so that its dashboards and alerts work.

use std::net::SocketAddr;
use std::time::Duration;

use knarr_client::metrics::{Registry, count};
use knarr_network::dns::cached::Reply;
use knarr_network::dns::record_type;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};

/// Types that have a count of their own, as in CoreDNS; others are `other`.
const TYPES: [(u16, &str); 12] = [
    (record_type::A, "A"),
    (record_type::AAAA, "AAAA"),
    (record_type::SRV, "SRV"),
    (record_type::PTR, "PTR"),
    (record_type::CNAME, "CNAME"),
    (record_type::NS, "NS"),
    (record_type::SOA, "SOA"),
    (record_type::TXT, "TXT"),
    (15, "MX"),
    (65, "HTTPS"),
    (record_type::ANY, "ANY"),
    (0, "other"),
];
const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];
/// From 50 µs on; CoreDNS' begin at 250 µs.
const BUCKETS: [f64; 14] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.064, 0.256, 1.024, 4.096,
    8.192,
];
const SERVER: &str = "dns://:53";

/// The transport of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// See the module. The counters for each question are resolved once, here.
pub struct Metrics {
    registry: Registry,
    requests: Vec<[[IntCounter; 2]; 2]>,
    responses: Vec<IntCounter>,
    other_responses: IntCounter,
    duration: Histogram,
    cache_hits: [IntCounter; 2],
    cache_misses: IntCounter,
    cache_entries: IntGaugeVec,
    forward: IntCounterVec,
    forward_duration: HistogramVec,
    /// `coredns_forward_max_concurrent_rejects_total`.
    pub rejected: IntCounter,
    /// Messages that were dropped without an answer.
    pub dropped: IntCounter,
    /// Connections that were closed for a limit.
    pub closed: IntCounter,
}

impl Metrics {
    pub fn new() -> Self {
        let registry = Registry::default();
        let requests = registry.counters(
            "coredns_dns_requests_total",
            "Counter of DNS requests made per zone, protocol and family.",
            &["server", "zone", "view", "proto", "family", "type"],
        );
        let responses = registry.counters(
            "coredns_dns_responses_total",
            "Counter of response status codes.",
            &["server", "zone", "view", "rcode", "plugin"],
        );
        let duration = registry.histograms(
            "coredns_dns_request_duration_seconds",
            "Histogram of the time (in seconds) each request took per zone.",
            &["server", "zone", "view"],
            &BUCKETS,
        );
        let hits = registry.counters(
            "coredns_cache_hits_total",
            "The count of cache hits.",
            &["server", "type", "zones", "view"],
        );
        let misses = registry.counters(
            "coredns_cache_misses_total",
            "The count of cache misses.",
            &["server", "zones", "view"],
        );
        let request =
            |proto, family, name| requests.with_label_values(&[SERVER, ".", "", proto, family, name]);
        let response = |code| responses.with_label_values(&[SERVER, ".", "", code, ""]);
        Metrics {
            requests: TYPES
                .iter()
                .map(|(_, name)| {
                    ["udp", "tcp"].map(|proto| ["1", "2"].map(|family| request(proto, family, name)))
                })
                .collect(),
            responses: CODES.iter().map(|code| response(code)).collect(),
            other_responses: response("other"),
            duration: duration.with_label_values(&[SERVER, ".", ""]),
            cache_hits: ["success", "denial"].map(|kind| hits.with_label_values(&[SERVER, kind, ".", ""])),
            cache_misses: misses.with_label_values(&[SERVER, ".", ""]),
            cache_entries: registry.gauges(
                "coredns_cache_entries",
                "The number of elements in the cache.",
                &["server", "type", "zones", "view"],
            ),
            forward: registry.counters(
                "coredns_forward_requests_total",
                "Counter of requests made per upstream.",
                &["to", "rcode"],
            ),
            forward_duration: registry.histograms(
                "coredns_forward_request_duration_seconds",
                "Histogram of the time each request to an upstream took.",
                &["to"],
                &BUCKETS,
            ),
            rejected: registry.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
            ),
            dropped: registry.counter("knarr_dns_dropped_total", "Messages that got no answer."),
            closed: registry.counter("knarr_dns_closed_total", "TCP connections closed for a limit."),
            registry,
        }
    }

    pub fn count_question(&self, transport: Transport, is_ipv6: bool, query_type: u16) {
        let at = TYPES.iter().position(|(t, _)| *t == query_type);
        let at = at.unwrap_or(TYPES.len() - 1);
        self.requests[at][usize::from(transport == Transport::Tcp)][usize::from(is_ipv6)].inc();
    }

    pub fn count_answer(&self, code: u16, took: Duration) {
        let counter = self.responses.get(usize::from(code));
        counter.unwrap_or(&self.other_responses).inc();
        self.duration.observe(took.as_secs_f64());
    }

    pub fn count_cache_result(&self, found: Option<&Reply>) {
        match found {
            Some(reply) => self.cache_hits[usize::from(!reply.has_answers())].inc(),
            None => self.cache_misses.inc(),
        }
    }

    /// A server has answered with this code, or not at all.
    pub fn forwarded(&self, server: SocketAddr, code: Option<u16>, took: Duration) {
        let to = server.to_string();
        let code = match code {
            Some(code) => CODES.get(usize::from(code)).copied().unwrap_or("other"),
            None => "none",
        };
        self.forward.with_label_values(&[to.as_str(), code]).inc();
        let duration = self.forward_duration.with_label_values(&[to.as_str()]);
        duration.observe(took.as_secs_f64());
    }

    /// In Prometheus' text format.
    pub fn text(&self, (positive, negative): (usize, usize)) -> String {
        for (kind, entries) in [("success", positive), ("denial", negative)] {
            let gauge = self.cache_entries.with_label_values(&[SERVER, kind, ".", ""]);
            gauge.set(count(entries));
        }
        self.registry.text()
    }
}
