//! Creates claims for pods from the ResourceClaimTemplates that their entries name, with a generated name that is then written to the
//! pod's status. A claim is found again by its owner and its annotation, so that none is created twice. For pods that were bound without
//! the scheduler (`spec.nodeName`) the allocated claims are reserved.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared, k8s_openapi};

use super::{
    ACCOUNT, NAME, POD_CLAIM, claim_of, claims_of, entries, is_allocated, is_done, is_for, made_for,
    reserved_for,
};
use crate::action::{Action, Create, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::controller_of;
use crate::pod;

const FAILED: &str = "FailedResourceClaimCreation";
/// The longest generateName, which leaves room for a hyphen and five characters of 63.
const GENERATE_NAME_MAX: usize = 57;

/// See the module. Its keys are pods.
pub struct PodResourceClaims;

/// What an entry needs.
enum Entry {
    /// Nothing, or nothing that this controller can do.
    Leave,
    /// The claim of this name exists and has to be written to the pod's status.
    Name(String),
    Create(Box<ResourceClaim>),
}

/// The generateName, which the API server completes.
fn generate_name(pod: &str, entry: &str) -> String {
    let full_name = format!("{pod}-{entry}-");
    if full_name.len() <= GENERATE_NAME_MAX {
        return full_name;
    }
    let cut = |text: &str| {
        let most = text.len() * GENERATE_NAME_MAX / full_name.len();
        text.chars().take(most).collect::<String>()
    };
    format!("{}-{}", cut(pod), cut(entry))
}

fn from_template(pod: &Shared<Pod>, entry: &str, template: &ResourceClaimTemplate) -> ResourceClaim {
    let of = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = of.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.into(), entry.into());
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.object().name().to_string(),
        uid: pod.object().uid().to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(pod.object().namespace().to_string()),
            generate_name: Some(generate_name(pod.object().name(), entry)),
            owner_references: Some(vec![owner]),
            annotations: Some(annotations),
            labels: of.labels,
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}

/// There is no template of the name that an entry has; shown in an event.
#[derive(Debug, thiserror::Error)]
#[error("resource claim template {0:?}: resourceclaimtemplate.resource.k8s.io {0:?} not found")]
struct TemplateNotFound(String);

impl PodResourceClaims {
    fn entry(
        &self,
        view: &dyn View,
        pod: &Shared<Pod>,
        entry: &PodResourceClaim,
    ) -> Result<Entry, TemplateNotFound> {
        let (namespace, uid) = (pod.object().namespace(), pod.object().uid());
        let Some(template) = &entry.resource_claim_template_name else {
            return Ok(Entry::Leave);
        };
        match made_for(pod, &entry.name) {
            Some(None) => return Ok(Entry::Leave),
            // If the claim now belongs to another owner, a new one is created.
            Some(Some(name)) => {
                let claim = view.get_as::<ResourceClaim>(namespace, name);
                if claim.is_some_and(|claim| is_for(&claim, uid)) {
                    return Ok(Entry::Leave);
                }
            }
            None => {}
        }
        let made = view
            .controlled_by_as::<ResourceClaim>(uid)
            .into_iter()
            .find(|claim| {
                let annotations = claim.metadata.annotations.as_ref();
                let is_of = annotations.and_then(|a| a.get(POD_CLAIM)) == Some(&entry.name);
                is_of && claim.metadata.deletion_timestamp.is_none()
            });
        if let Some(made) = made {
            return Ok(Entry::Name(made.object().name().to_string()));
        }
        let Some(found) = view.get_as::<ResourceClaimTemplate>(namespace, template) else {
            return Err(TemplateNotFound(template.clone()));
        };
        let claim = from_template(pod, &entry.name, &found);
        Ok(Entry::Create(Box::new(claim)))
    }

    /// Reserves allocated claims for a pod that is bound to a node.
    fn reserve(&self, view: &dyn View, pod: &Shared<Pod>) -> Vec<Action> {
        let (namespace, uid) = (pod.object().namespace(), pod.object().uid());
        let mut actions = Vec::new();
        for entry in entries(pod) {
            let Some(claim) =
                claim_of(pod, entry).and_then(|name| view.get_as::<ResourceClaim>(namespace, name))
            else {
                continue;
            };
            let must_be_its = entry.resource_claim_name.is_none();
            let has = reserved_for(&claim).iter().any(|user| user.uid == uid);
            if has || !is_allocated(&claim) || (must_be_its && !is_for(&claim, uid)) {
                continue;
            }
            let mut changed: ResourceClaim = (*claim).clone();
            let users = changed
                .status
                .get_or_insert_default()
                .reserved_for
                .get_or_insert_default();
            users.push(ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".into(),
                name: pod.object().name().to_string(),
                uid: uid.to_string(),
            });
            actions.push(Action::update_status(changed));
        }
        actions
    }
}

impl Controller for PodResourceClaims {
    fn name(&self) -> &'static str {
        NAME
    }

    fn queue(&self) -> &'static str {
        "resource_claim_pods"
    }

    fn account(&self) -> &'static str {
        ACCOUNT
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::POD,
            &registry::RESOURCE_CLAIM,
            &registry::RESOURCE_CLAIM_TEMPLATE,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let Some(object) = changed.object() else {
            return Vec::new();
        };
        if let Some(pod) = object.get::<Pod>() {
            let any = changed.new.is_some() && !entries(pod).is_empty();
            return any.then(|| ObjectKey::of(object)).into_iter().collect();
        }
        let users = |uses: &dyn Fn(&Pod) -> bool| {
            let pods = view.list_as::<Pod>(object.namespace());
            let users = pods.iter().filter(|pod| uses(pod));
            users.map(|pod| ObjectKey::of(pod.object())).collect()
        };
        if *changed.kind == registry::RESOURCE_CLAIM_TEMPLATE {
            let is = |entry: &PodResourceClaim| {
                entry.resource_claim_template_name.as_deref() == Some(object.name())
            };
            return users(&|pod| entries(pod).iter().any(is));
        }
        match controller_of(object.metadata()) {
            Some(owner) if owner.kind == "Pod" => vec![ObjectKey::new(object.namespace(), &owner.name)],
            _ => users(&|pod| claims_of(pod).any(|name| name == object.name())),
        }
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (key, view) = (context.key, context.view);
        let Some(pod) = view.get_as::<Pod>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        // After a failure the key is retried later; a finished pod needs no claims any more.
        if pod::is_deleting(&pod) || is_done(&pod) || context.failure.is_some() {
            return Vec::new();
        }
        let about = reference(pod.object());
        let mut actions = Vec::new();
        let mut named: Option<Pod> = None;
        for entry in entries(&pod) {
            let of_entry = format!("PodResourceClaim {}: ", entry.name);
            match self.entry(view, &pod, entry) {
                Ok(Entry::Leave) => {}
                Ok(Entry::Name(claim)) => {
                    let changed = named.get_or_insert_with(|| (*pod).clone());
                    let status = changed.status.get_or_insert_default();
                    let all = status.resource_claim_statuses.get_or_insert_default();
                    all.retain(|made| made.name != entry.name);
                    all.push(PodResourceClaimStatus {
                        name: entry.name.clone(),
                        resource_claim_name: Some(claim),
                    });
                }
                Ok(Entry::Create(claim)) => actions.push(Action::Create(Create {
                    report: Some(Report {
                        about: about.clone(),
                        done: None,
                        failed: (FAILED, format!("{of_entry}create ResourceClaim : ")),
                    }),
                    ..Create::new(*claim)
                })),
                Err(why) => {
                    actions.push(Action::warning(&about, FAILED, format!("{of_entry}{why}")));
                    break;
                }
            }
        }
        actions.extend(named.map(Action::update_status));
        if !pod::node_name(&pod).is_empty() {
            actions.extend(self.reserve(view, &pod));
        }
        actions
    }
}
