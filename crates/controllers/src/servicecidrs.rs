//! ServiceCIDRs: each is ready once it is created, and is kept while a Service has an address that is in no other one.
//!
//! kube-controller-manager's service-cidrs-controller (KEP-1880) checks IPAddress objects; here the addresses of Services are
//! the record, and these are checked.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::service_ips::{allocated_to, ranges};
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::time::seconds;

use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// How long API servers may still allocate addresses of a ServiceCIDR that is being deleted, until their caches show it.
const GRACE: SignedDuration = SignedDuration::from_secs(10);

/// See the module. Its keys are ServiceCIDRs.
pub struct ServiceCidrs;

impl Controller for ServiceCidrs {
    fn name(&self) -> &'static str {
        "service-cidr-controller"
    }

    fn account(&self) -> &'static str {
        "service-cidrs-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SERVICE_CIDR, &registry::SERVICE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> = changed.key_of(&registry::SERVICE_CIDR).into_iter().collect();
        let addresses = |o: Option<&Object>| {
            let service = o.and_then(|o| o.get::<Service>());
            service.map(|s| allocated_to(s).0).unwrap_or_default()
        };
        let concerns = match changed.kind {
            kind if kind == &registry::SERVICE => addresses(changed.old) != addresses(changed.new),
            // A created range may contain the addresses of a deleted one, and the other way round.
            _ => changed.old.is_none() || changed.new.is_none(),
        };
        if concerns {
            let all = view.list_as::<ServiceCIDR>("").into_iter();
            let terminating = all.filter(|c| c.metadata.deletion_timestamp.is_some());
            keys.extend(terminating.map(|c| ObjectKey::of(c.object())));
        }
        keys.sort();
        keys.dedup();
        keys
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(cidr) = context.view.get_as::<ServiceCIDR>("", &context.key.name) else {
            return Vec::new();
        };
        if context.failure.is_some() {
            return Vec::new();
        }
        let finalizers = cidr.metadata.finalizers.clone().unwrap_or_default();
        let has_finalizer = finalizers.iter().any(|f| f == FINALIZER);
        let Some(deleted) = &cidr.metadata.deletion_timestamp else {
            // One after the other: the second update follows from the change of the first.
            if !has_finalizer {
                let mut changed = (*cidr).clone();
                let finalizers = changed.metadata.finalizers.get_or_insert_default();
                finalizers.push(FINALIZER.into());
                return vec![Action::update(changed)];
            }
            let message = "Kubernetes Service CIDR is ready";
            return with_condition(&cidr, "True", "", message, context.now)
                .into_iter()
                .collect();
        };
        if !has_finalizer {
            return Vec::new();
        }
        if is_needed(context.view, &cidr) {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            return with_condition(&cidr, "False", "Terminating", message, context.now)
                .into_iter()
                .collect();
        }
        let left = GRACE - context.now.duration_since(deleted.0);
        if let Some(wait) = Duration::try_from(left).ok().filter(|left| !left.is_zero()) {
            return vec![Action::RequeueAfter(wait)];
        }
        let mut changed = (*cidr).clone();
        let finalizers = changed.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|f| f != FINALIZER);
        vec![Action::update(changed)]
    }
}

/// Whether a Service has an address that is in this ServiceCIDR and in no other one.
fn is_needed(view: &dyn View, cidr: &Shared<ServiceCIDR>) -> bool {
    let own = ranges(cidr);
    let others = view.list_as::<ServiceCIDR>("").into_iter();
    let others = others.filter(|o| o.object().name() != cidr.object().name());
    let others: Vec<Cidr> = others.flat_map(|o| ranges(&o)).collect();
    let is_only_here = |a: IpAddr| own.iter().any(|r| r.contains(a)) && !others.iter().any(|r| r.contains(a));
    let services = view.list_as::<Service>("");
    services
        .iter()
        .any(|s| allocated_to(s).0.into_iter().any(is_only_here))
}

/// The ServiceCIDR with this condition, if it differs.
fn with_condition(
    cidr: &Shared<ServiceCIDR>,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<Action> {
    let conditions = cidr.status.as_ref().and_then(|s| s.conditions.clone());
    let mut conditions = conditions.unwrap_or_default();
    let known = conditions.iter().find(|c| c.type_ == READY);
    // The API server has set the condition of the default one, with its own message.
    let same = |c: &Condition| {
        c.status == status && c.reason == reason && (c.message == message || status == "True")
    };
    if known.is_some_and(same) {
        return None;
    }
    let since = known
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    conditions.retain(|c| c.type_ != READY);
    conditions.push(Condition {
        type_: READY.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: since.unwrap_or_else(|| seconds(now)),
    });
    let mut changed = (**cidr).clone();
    changed.status.get_or_insert_default().conditions = Some(conditions);
    Some(Action::update_status(changed))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines, updated};

    fn cidr(name: &str, range: &str, deleted: Option<i64>) -> ServiceCIDR {
        let mut cidr: ServiceCIDR =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": [range]}})).unwrap();
        if let Some(second) = deleted {
            cidr.metadata.deletion_timestamp = Some(Time(at(second)));
            cidr.metadata.finalizers = Some(vec![FINALIZER.into()]);
        }
        cidr
    }

    fn service(ip: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": "s"},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_service_cidr_gets_its_finalizer_and_is_ready() {
        let mut world = World::default();
        world.put(cidr("more", "10.9.0.0/24", None));
        let run = |world: &World| world.run(&ServiceCidrs, ("", "more"), at(0));
        let first = run(&world);
        assert_eq!(lines(&first), ["update servicecidrs more"]);
        world.take(&first);
        let second = run(&world);
        let ready = updated::<ServiceCIDR>(&second, "status").unwrap();
        let ready = ready.status.unwrap().conditions.unwrap().remove(0);
        assert_eq!((ready.type_.as_str(), ready.status.as_str()), ("Ready", "True"));
        world.take(&second);
        assert_eq!(lines(&run(&world)), [""; 0]);
    }

    #[test]
    fn a_service_cidr_stays_while_a_service_has_an_address_that_is_in_no_other() {
        let mut world = World::default();
        world.put(cidr("more", "10.9.0.0/24", Some(0)));
        world.put(service("10.9.0.7"));
        let run = |world: &World, second| world.run(&ServiceCidrs, ("", "more"), at(second));
        let actions = run(&world, 60);
        let condition = updated::<ServiceCIDR>(&actions, "status").unwrap();
        let condition = condition.status.unwrap().conditions.unwrap().remove(0);
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "Terminating")
        );
        world.take(&actions);
        assert_eq!(lines(&run(&world, 60)), [""; 0]);

        // A larger range contains the address, too.
        world.put(cidr("large", "10.8.0.0/14", None));
        let actions = run(&world, 60);
        assert_eq!(
            updated::<ServiceCIDR>(&actions, "").unwrap().metadata.finalizers,
            Some(vec![])
        );
        world.remove(&registry::SERVICE_CIDR, "", "large");

        // The Service is deleted: the finalizer is kept until every API server has seen the deletion of the ServiceCIDR.
        world.remove(&registry::SERVICE, "d", "s");
        assert_eq!(lines(&run(&world, 4)), ["requeue after 6s"]);
        let actions = run(&world, 10);
        assert!(updated::<ServiceCIDR>(&actions, "").is_some());
    }

    #[test]
    fn a_services_change_enqueues_ranges_that_are_being_deleted() {
        let mut world = World::default();
        world.put(cidr("stays", "10.8.0.0/24", None));
        world.put(cidr("deleted", "10.9.0.0/24", Some(0)));
        let object = world.put(service("10.9.0.7"));
        let changed = |old, new| ObjectChange {
            kind: &registry::SERVICE,
            old,
            new,
        };
        let gone = ServiceCidrs.keys(&world, changed(Some(&object), None));
        assert_eq!(gone, [ObjectKey::new("", "deleted")]);
        let same = ServiceCidrs.keys(&world, changed(Some(&object), Some(&object)));
        assert_eq!(same, []);
    }
}
