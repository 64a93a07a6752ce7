//! DNS on a node without its sockets: the catalog and namespaces of the real agent, and its real zone that answers
//! from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::registry;
use knarr_client::Api;
use knarr_client::informer::{self, Scope};
use knarr_network::dns::message::Data;
use knarr_network::dns::name::Name;
use knarr_network::dns::record_type;
use knarr_network::dns::zone::{Outcome, Zone, resolve};
use knarr_node_network::catalog::Shared;
use knarr_node_network::dns::knowledge::{Knowledge, Namespaces};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::world::DnsResponse;

const DOMAIN: &str = "cluster.local";
/// As CoreDNS.
const TTL_SECONDS: u32 = 5;

/// Of one incarnation of the agent.
pub(crate) struct Names {
    knowledge: Option<Arc<Knowledge>>,
    mutation: Option<Mutation>,
    /// For [`Mutation::AnswerFromBefore`].
    first: Mutex<BTreeMap<String, DnsResponse>>,
}

/// `None` only if the constant is not a name.
fn zone() -> Option<Zone> {
    let domain = Name::parse(DOMAIN).ok()?;
    Zone::new(domain, TTL_SECONDS, Vec::new())
}

impl Names {
    pub fn start(
        api: &Arc<dyn Api>,
        catalog: &Arc<Shared>,
        dead: &CancellationToken,
        mutation: Option<Mutation>,
    ) -> Arc<Self> {
        let mut changes = catalog.subscribe();
        let knowledge = zone().map(|zone| Arc::new(Knowledge::new(zone, catalog.clone(), Vec::new(), 1)));
        if let Some(knowledge) = knowledge.clone() {
            let namespaces = Arc::new(Namespaces(knowledge.clone()));
            let follow = informer::run(
                api.clone(),
                registry::NAMESPACE.clone(),
                Scope::default(),
                namespaces,
            );
            let take = async move {
                while let Some(changes) = changes.changes().await {
                    knowledge.take_changes(&changes);
                }
            };
            let dead = dead.clone();
            tokio::spawn(async move {
                dead.run_until_cancelled(futures::future::join(follow, take))
                    .await
            });
        }
        Arc::new(Names {
            knowledge,
            mutation,
            first: Mutex::default(),
        })
    }

    /// The addresses of a name.
    pub fn ask(&self, question: &str, is_cut: bool) -> DnsResponse {
        let (Some(knowledge), Ok(name)) = (&self.knowledge, Name::parse(question)) else {
            return DnsResponse::NotReady;
        };
        let answer = knowledge.with_view(|view| resolve(view, &name, record_type::A));
        let answered = match answer.end {
            Outcome::Records => {
                let address = |data: &Data| match data {
                    Data::Address(address) => Some(*address),
                    _ => None,
                };
                let addresses = answer.records.iter().filter_map(|record| address(&record.data));
                DnsResponse::Addresses(addresses.collect())
            }
            Outcome::NoData => DnsResponse::Addresses(Default::default()),
            Outcome::NoName => DnsResponse::NoName,
            Outcome::Elsewhere(_) | Outcome::NotReady | Outcome::Failed => DnsResponse::NotReady,
        };
        match self.mutation {
            Some(Mutation::AnswerOnlyWhenConnected) if is_cut => DnsResponse::NotReady,
            Some(Mutation::AnswerFromBefore) if answered != DnsResponse::NotReady => {
                let mut first = self.first.lock();
                first.entry(question.into()).or_insert(answered).clone()
            }
            _ => answered,
        }
    }
}
