//! From a message to its answer, on any transport. What is known is answered at once, without waiting for anything;
//! what needs an upstream server is completed later.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use knarr_network::dns::cached::Question;
use knarr_network::dns::message::{self, Data, Record, Section, TCP_BYTES_MAX, Writer};
use knarr_network::dns::name::Name;
use knarr_network::dns::query::{self, Query};
use knarr_network::dns::search::{self, SearchList};
use knarr_network::dns::zone::{Answer, Outcome};
use knarr_network::dns::{record_type, response_code};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::NamespaceOf;
use super::forwarder::Forwarder;
use super::knowledge::Knowledge;
use super::metrics::{Metrics, Transport};

/// Rejections sent over UDP in a second, where the sender's address may be forged.
const REJECTIONS_PER_SECOND: u32 = 500;

/// The result of a message.
pub enum Next {
    /// The answer has been written.
    Answered,
    /// There is none.
    Dropped,
    /// An upstream server is needed: [`Responder::complete`].
    Elsewhere(Answer),
}

/// See the module.
pub struct Responder {
    pub knowledge: Arc<Knowledge>,
    pub forwarder: Arc<Forwarder>,
    pub metrics: Arc<Metrics>,
    namespace_of: Option<NamespaceOf>,
    rejections: Mutex<(Instant, u32)>,
    /// Where the next list of addresses begins, so that clients that take the first one spread.
    rotation: AtomicUsize,
}

fn limit(query: &Query<'_>, transport: Transport) -> usize {
    match transport {
        Transport::Udp => query.udp_limit(),
        Transport::Tcp => TCP_BYTES_MAX,
    }
}

/// Rotates the addresses among the records, which are together at the end.
fn rotate(records: &mut [Record], by: usize) {
    let is_address = |record: &Record| matches!(record.data, Data::Address(_));
    let begin = records.iter().position(is_address).unwrap_or(records.len());
    let addresses = &mut records[begin..];
    if addresses.len() > 1 {
        addresses.rotate_left(by % addresses.len());
    }
}

impl Responder {
    pub fn new(
        knowledge: Arc<Knowledge>,
        forwarder: Arc<Forwarder>,
        metrics: Arc<Metrics>,
        namespace_of: Option<NamespaceOf>,
    ) -> Self {
        Responder {
            knowledge,
            forwarder,
            metrics,
            namespace_of,
            rejections: Mutex::new((Instant::now(), 0)),
            rotation: AtomicUsize::new(0),
        }
    }

    fn may_reject(&self, transport: Transport) -> bool {
        if transport == Transport::Tcp {
            return true;
        }
        let mut window = self.rejections.lock();
        let now = Instant::now();
        if now.saturating_duration_since(window.0) >= Duration::from_secs(1) {
            *window = (now, 0);
        }
        window.1 += 1;
        window.1 <= REJECTIONS_PER_SECOND
    }

    /// Writes the answer to a message behind what `out` holds, if it can be given now.
    pub fn respond(&self, bytes: &[u8], client: IpAddr, transport: Transport, out: &mut Vec<u8>) -> Next {
        let query = match query::read(bytes) {
            Ok(query) => query,
            Err(rejected) => {
                if self.may_reject(transport) && message::rejection(out, &rejected) {
                    return Next::Answered;
                }
                self.metrics.dropped.inc();
                return Next::Dropped;
            }
        };
        self.metrics
            .count_question(transport, client.is_ipv6(), query.record_type);
        let mut answer = self.resolve(&query, client);
        if answer.end == Outcome::Elsewhere(vec![query.name.clone()]) {
            if self.forwarder.is_own_probe(&query.name, query.record_type) {
                message::error(out, &query, response_code::SERVER_FAILURE);
                return Next::Answered;
            }
            if query.record_type == record_type::ANY {
                answer = minimal_any();
            } else if let Some(host) = self.host(&query.name, query.record_type) {
                answer = host;
            } else if let Some((reply, age)) =
                self.forwarder.cached(&Question::new(query.name.clone(), &query))
            {
                reply.write(out, &query, age, limit(&query, transport));
                return Next::Answered;
            }
        }
        if matches!(answer.end, Outcome::Elsewhere(_)) {
            return Next::Elsewhere(answer);
        }
        let by = self.rotation.fetch_add(1, Ordering::Relaxed);
        rotate(&mut answer.records, by);
        self.write(out, &query, &answer, limit(&query, transport));
        Next::Answered
    }

    fn host(&self, name: &Name, query_type: u16) -> Option<Answer> {
        let routes = self.knowledge.routes();
        routes.forwarding.host(name, query_type)
    }

    fn resolve(&self, query: &Query<'_>, client: IpAddr) -> Answer {
        let plain = self
            .knowledge
            .with_view(|view| search::resolve(view, None, &query.name, query.record_type));
        let namespace = match (&plain.end, &self.namespace_of) {
            (Outcome::NoName, Some(namespace_of)) if plain.records.is_empty() => namespace_of(client),
            _ => None,
        };
        let Some(namespace) = namespace else {
            return plain;
        };
        let routes = self.knowledge.routes();
        let list = SearchList {
            namespace: &namespace,
            node_domains: &routes.resolv_conf.domains,
        };
        self.knowledge
            .with_view(|view| search::resolve(view, Some(list), &query.name, query.record_type))
    }

    fn write(&self, out: &mut Vec<u8>, query: &Query<'_>, answer: &Answer, limit: usize) {
        let code = match answer.end {
            Outcome::Records | Outcome::NoData | Outcome::Elsewhere(_) => response_code::NO_ERROR,
            Outcome::NoName => response_code::NAME_ERROR,
            Outcome::NotReady | Outcome::Failed => {
                return message::error(out, query, response_code::SERVER_FAILURE);
            }
        };
        let mut writer = Writer::begin(out, query, limit);
        for record in &answer.records {
            writer.record(Section::Answer, record);
        }
        if matches!(answer.end, Outcome::NoData | Outcome::NoName) {
            let authority = self.knowledge.zone().authority(self.knowledge.serial());
            writer.record(Section::Authority, &authority);
        }
        for record in &answer.additional {
            writer.record(Section::Additional, record);
        }
        writer.finish(code, true);
    }

    /// Completes an answer from upstream servers.
    pub async fn complete(&self, bytes: &[u8], transport: Transport, answer: Answer) -> Vec<u8> {
        let mut out = Vec::new();
        let Ok(query) = query::read(bytes) else {
            return out;
        };
        let limit = limit(&query, transport);
        let Some(_permit) = self.forwarder.permit() else {
            message::error(&mut out, &query, response_code::REFUSED);
            return out;
        };
        let names = match &answer.end {
            Outcome::Elsewhere(names) => names.clone(),
            _ => Vec::new(),
        };
        let is_plain = answer.records.is_empty() && names.len() == 1 && names[0] == query.name;
        if is_plain {
            let question = Question::new(query.name.clone(), &query);
            match self
                .forwarder
                .query_upstream(question, &self.knowledge.routes())
                .await
            {
                Some((reply, age)) => reply.write(&mut out, &query, age, limit),
                None => message::error(&mut out, &query, response_code::SERVER_FAILURE),
            }
            return out;
        }
        // The end of a search list: names are aliases of the queried one. Otherwise the records lead to the one name.
        let is_search = answer.records.is_empty();
        for name in names {
            let mut found = answer.clone();
            if is_search {
                found.records = vec![self.knowledge.with_view(|view| search::alias(view, name.clone()))];
            }
            found.end = Outcome::Records;
            if let Some(host) = self.host(&name, query.record_type) {
                found.records.extend(host.records.into_iter().map(|mut record| {
                    record.owner = Some(name.clone());
                    record
                }));
                self.write(&mut out, &query, &found, limit);
                return out;
            }
            let question = Question::new(name.clone(), &query);
            let resolved = match self.forwarder.cached(&question) {
                Some(known) => Some(known),
                None => {
                    let routes = self.knowledge.routes();
                    self.forwarder.query_upstream(question.clone(), &routes).await
                }
            };
            match resolved {
                Some((reply, _)) if is_search && reply.code() == response_code::NAME_ERROR => continue,
                Some((reply, age))
                    if matches!(reply.code(), response_code::NO_ERROR | response_code::NAME_ERROR) =>
                {
                    // Our own records, and behind them the other server's, under its response code.
                    if let Err(error) = reply.write_behind(&mut out, &query, &found, &question, age, limit) {
                        debug!(name = %question.name, %error, "unusable answer of a name server");
                        out.clear();
                        message::error(&mut out, &query, response_code::SERVER_FAILURE);
                    }
                    return out;
                }
                _ => {
                    message::error(&mut out, &query, response_code::SERVER_FAILURE);
                    return out;
                }
            }
        }
        self.write(&mut out, &query, &no_name(), limit);
        out
    }
}

fn no_name() -> Answer {
    Answer {
        records: Vec::new(),
        additional: Vec::new(),
        end: Outcome::NoName,
    }
}

fn minimal_any() -> Answer {
    let record = Record {
        owner: None,
        ttl_seconds: 8482,
        data: Data::MinimalAny,
    };
    Answer {
        records: vec![record],
        additional: Vec::new(),
        end: Outcome::Records,
    }
}
