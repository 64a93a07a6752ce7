//! ResourceQuota: what is written is charged to the quotas of its namespace first, and refused where they have no room.
//!
//! A charge is written to the quota's status, with its version as precondition, before the object is, so that no two
//! writers use the same room. Those who wait for one quota share a write of it. A charge whose object was not written
//! is given back. What objects leave when they go, the quota controller gives back: it counts.
//!
//! The controller's caches may lag behind: a count that misses an object which was charged a moment ago would open
//! room that is not there. So a status that lowers what is used is held against what this server knows, charges under
//! way included, and refused as a conflict where it is too low; the controller then counts again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceQuota;
use knarr_api::kinds::pod::resources::{Amounts, amounts};
use knarr_api::quota::{self, Change, Charge, Devices, Evaluator};
use knarr_api::{AnyObject, Error, Object, k8s_openapi, registry};
use knarr_client::Preconditions;
use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tracing::warn;

use super::{Attributes, Operation};
use crate::cache::Written;
use crate::cache::change::Filter;
use crate::pipeline::{Ctx, MODIFIED, Target};
use crate::server::Server;

/// A quota, by namespace and name.
type Key = (String, String);
/// Whether there was room.
type Answer = Result<(), Refusal>;

#[derive(Clone)]
enum Refusal {
    /// The quota has no room; says why.
    NoRoom(String),
    /// The quota could not be written.
    Failed(Error),
}

/// A charge that waits for the quota to be written.
struct Waiting {
    charge: Charge,
    answer: oneshot::Sender<Answer>,
}

/// What is being charged at this moment.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Those who wait for a quota; one of them writes for all.
    waiting: Mutex<HashMap<Key, Vec<Waiting>>>,
    /// One writer for each quota.
    writing: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    under_way: Mutex<UnderWay>,
}

/// Charges whose objects are not stored yet.
#[derive(Default)]
struct UnderWay {
    last: u64,
    charges: BTreeMap<u64, (Key, Amounts)>,
}

/// What a request was charged. To be [given back](Server::give_back) if its object is not written.
#[must_use]
pub(crate) struct Charged<'a> {
    ledger: &'a Ledger,
    namespace: String,
    charges: Vec<(u64, Charge)>,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        if !self.charges.is_empty() {
            let mut under_way = self.ledger.under_way.lock();
            for (id, _) in &self.charges {
                under_way.charges.remove(id);
            }
        }
    }
}

impl Ledger {
    fn nothing(&self, namespace: &str) -> Charged<'_> {
        Charged {
            ledger: self,
            namespace: namespace.to_string(),
            charges: Vec::new(),
        }
    }

    /// What is charged to a quota and not stored yet.
    fn under_way(&self, key: &Key) -> Amounts {
        let mut sum = Amounts::new();
        for (_, more) in self.under_way.lock().charges.values().filter(|(k, _)| k == key) {
            for (name, amount) in more {
                *sum.entry(name.clone()).or_default() += *amount;
            }
        }
        sum
    }
}

impl<'a> Charged<'a> {
    /// From now on the charge counts as under way.
    fn begin(&mut self, charge: &Charge) {
        let mut under_way = self.ledger.under_way.lock();
        under_way.last += 1;
        let id = under_way.last;
        let key = (self.namespace.clone(), charge.quota.clone());
        under_way.charges.insert(id, (key, charge.amounts.clone()));
        self.charges.push((id, charge.clone()));
    }

    fn end_last(&mut self) {
        if let Some((id, _)) = self.charges.pop() {
            self.ledger.under_way.lock().charges.remove(&id);
        }
    }
}

/// Charges what is about to be written.
pub(super) async fn charge<'a>(
    server: &'a Server,
    ctx: &Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<Charged<'a>, Error> {
    let target = attributes.target;
    let mut charged = server.ledger.nothing(target.namespace);
    let evaluator = Evaluator::of(target.kind).filter(|evaluator| {
        !target.namespace.is_empty()
            && evaluator.may_change(target.subresource, attributes.operation == Operation::Create)
    });
    let Some(evaluator) = evaluator else {
        return Ok(charged);
    };
    let kind = &registry::RESOURCE_QUOTA;
    let found = server
        .cache
        .of(kind)?
        .list(&Filter::everything(kind, target.namespace));
    if found.is_empty() {
        return Ok(charged);
    }
    let quotas: Vec<&ResourceQuota> = found.iter().filter_map(|o| o.get()).collect();
    let devices = match evaluator {
        Evaluator::ResourceClaims => Devices::new(|kind| server.in_namespace(kind, target.namespace)),
        _ => Devices::default(),
    };
    let change = Change {
        evaluator: &evaluator,
        subresource: target.subresource,
        old: attributes.old.map(|old| old.typed()),
        new: object,
        now: ctx.now,
        devices: &devices,
    };
    let refused = |why: &str| attributes.forbidden(object.metadata(), why);
    let charges = quota::check(&quotas, &change).map_err(|why| refused(&why))?;
    if ctx.dry_run || charges.is_empty() {
        return Ok(charged);
    }
    for charge in charges {
        charged.begin(&charge);
        // Boxed: a quota's write is a request of its own, which is admitted like this one.
        let outcome = Box::pin(server.put_on(target.namespace, charge)).await;
        if let Err(refusal) = outcome {
            charged.end_last();
            server.give_back(charged).await;
            return Err(match refusal {
                Refusal::NoRoom(why) => refused(&why),
                Refusal::Failed(error) => error,
            });
        }
    }
    Ok(charged)
}

/// A status that counts less than there is was counted from an old picture.
pub(super) fn validate_count(
    server: &Server,
    ctx: &Ctx,
    attributes: &Attributes<'_>,
    object: &dyn AnyObject,
) -> Result<(), Error> {
    let target = attributes.target;
    let Some(new) = object.as_any().downcast_ref::<ResourceQuota>() else {
        return Ok(());
    };
    let old = attributes.old.and_then(|old| old.get::<ResourceQuota>());
    let (Operation::Update, "status", Some(old)) = (attributes.operation, target.subresource, old) else {
        return Ok(());
    };
    let used = |quota: &ResourceQuota| amounts(quota.status.as_ref().and_then(|s| s.used.as_ref()));
    let (was, is) = (used(old), used(new));
    // Given back by this server itself, which knows.
    let own = ctx.user.name == SELF;
    let lowered = |name: &String| {
        was.get(name)
            .is_some_and(|was| is.get(name).is_none_or(|is| is < was))
    };
    if own || !is.keys().any(lowered) {
        return Ok(());
    }
    let served = server.served();
    let mut there = quota::used(
        new,
        served.all(),
        |kind| server.in_namespace(kind, target.namespace),
        ctx.now,
    );
    let key = (target.namespace.to_string(), target.name.to_string());
    for (name, amount) in server.ledger.under_way(&key) {
        *there.entry(name).or_default() += amount;
    }
    let too_low = |name: &String| {
        there
            .get(name)
            .is_some_and(|there| is.get(name).is_none_or(|is| is < there))
    };
    match is.keys().any(|name| lowered(name) && too_low(name)) {
        true => Err(Error::conflict(target.about(), MODIFIED)),
        false => Ok(()),
    }
}

/// As whom this server writes quotas.
const SELF: &str = "system:apiserver";

fn as_quota(object: &Object) -> Result<ResourceQuota, Error> {
    object
        .to_typed()
        .ok_or_else(|| Error::internal("a ResourceQuota that is none"))
}

impl Server {
    fn in_namespace(&self, kind: &knarr_api::Kind, namespace: &str) -> Vec<Arc<Object>> {
        let namespace = if kind.namespaced() { namespace } else { "" };
        // A kind that is not held has no objects.
        let held = self.cache.of(kind).ok();
        held.map_or_else(Vec::new, |held| held.list(&Filter::everything(kind, namespace)))
    }

    /// Puts a charge on its quota, together with those of others that wait for it.
    async fn put_on(&self, namespace: &str, charge: Charge) -> Answer {
        let key: Key = (namespace.to_string(), charge.quota.clone());
        loop {
            let (answer, mut answered) = oneshot::channel();
            let waiting = Waiting {
                charge: charge.clone(),
                answer,
            };
            self.ledger
                .waiting
                .lock()
                .entry(key.clone())
                .or_default()
                .push(waiting);
            let writer = self.ledger.writing.lock().entry(key.clone()).or_default().clone();
            let turn = writer.lock().await;
            // Whoever had the turn before may have written for this one too.
            let mut done = answered.try_recv();
            if matches!(done, Err(TryRecvError::Empty)) {
                let all = self.ledger.waiting.lock().remove(&key).unwrap_or_default();
                self.write_charges(&key, all).await;
                done = answered.try_recv();
            }
            drop(turn);
            self.forget(&key, &writer);
            if let Ok(answer) = done {
                return answer;
            }
            // Who wrote for this one was broken off in the middle.
        }
    }

    /// Nobody keeps the lock of a quota that nobody writes.
    fn forget(&self, key: &Key, writer: &Arc<tokio::sync::Mutex<()>>) {
        let mut writing = self.ledger.writing.lock();
        // This one's and the map's.
        if Arc::strong_count(writer) <= 2 {
            writing.remove(key);
        }
    }

    /// One write of the quota with every charge for which there is room.
    async fn write_charges(&self, (namespace, name): &Key, all: Vec<Waiting>) {
        let mut answers: Vec<Answer> = Vec::new();
        let target = Target {
            subresource: "status",
            ..Target::main(&registry::RESOURCE_QUOTA, namespace, name)
        };
        let written = self
            .update(
                &mut self.quota_ctx(),
                &target,
                &Preconditions::default(),
                &mut |_, old| {
                    let mut quota = as_quota(old)?;
                    answers = all.iter().map(|waiting| try_on(&mut quota, waiting)).collect();
                    quota
                        .metadata
                        .resource_version
                        .clone_from(&old.metadata().resource_version);
                    Ok(Box::new(quota))
                },
            )
            .await;
        for (at, waiting) in all.into_iter().enumerate() {
            let answer = match &written {
                Ok(_) => answers.get(at).cloned().unwrap_or(Ok(())),
                // A quota that is gone limits nothing.
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => Err(Refusal::Failed(error.clone())),
            };
            // Who does not wait any more was answered otherwise.
            let _ = waiting.answer.send(answer);
        }
    }

    /// Ends a charge: it stays unless the object was certainly not written.
    pub(crate) async fn settle<T>(
        &self,
        charged: Charged<'_>,
        written: Result<Written<T>, Error>,
    ) -> Result<Written<T>, Error> {
        let failed = match &written {
            Ok(Written::Done(_)) => false,
            Ok(Written::Conflict) => true,
            // Of what fails inside nobody knows how far it came.
            Err(error) => error.code() < 500,
        };
        if failed {
            self.give_back(charged).await;
        }
        written
    }

    /// Takes charges back whose object was not written.
    async fn give_back(&self, mut charged: Charged<'_>) {
        for (id, charge) in std::mem::take(&mut charged.charges) {
            let target = Target {
                subresource: "status",
                ..Target::main(&registry::RESOURCE_QUOTA, &charged.namespace, &charge.quota)
            };
            let same = Preconditions {
                uid: Some(charge.uid.clone()),
                ..Preconditions::default()
            };
            let mut ctx = self.quota_ctx();
            let mut take_off = |_: &mut Ctx, old: &Arc<Object>| -> Result<Box<dyn AnyObject>, Error> {
                let mut quota = as_quota(old)?;
                charge.take_off(&mut quota);
                Ok(Box::new(quota))
            };
            match Box::pin(self.update(&mut ctx, &target, &same, &mut take_off)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                // The controller's next count puts it right.
                Err(error) => warn!(quota = charge.quota, %error, "a charge was not given back"),
            }
            self.ledger.under_way.lock().charges.remove(&id);
        }
    }

    fn quota_ctx(&self) -> Ctx {
        let mut ctx = self.myself();
        // Nobody wants to own what changes with every pod.
        ctx.manager = None;
        ctx
    }
}

/// Puts the charge on if the quota, as it is now, has room.
fn try_on(quota: &mut ResourceQuota, waiting: &Waiting) -> Answer {
    let charge = &waiting.charge;
    if quota.metadata.uid.as_deref() != Some(&charge.uid) {
        // Another of the same name: its controller counts anew, with what is stored by then.
        return Ok(());
    }
    match charge.exceeds(quota) {
        Some(why) => Err(Refusal::NoRoom(why)),
        None => {
            charge.put_on(quota);
            Ok(())
        }
    }
}
