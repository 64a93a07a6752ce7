//! Field management: how every write changes `metadata.managedFields`.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use knarr_api::managed_fields::{Conversions, Managed, ManagerId, Operation, blank, is_reset};
use knarr_api::{AnyObject, Object, convert, k8s_openapi};
use knarr_apimachinery::Error;
use serde_json::Value;

use super::Pipeline;
use super::write::{BINDING, Change, Write};
use crate::request::{Ctx, Target};

/// Capacity that is enough for most encodings.
const ENCODED_BYTES: usize = 4096;

/// The longest chain of conversions that one write needs: an apply removes fields in the version of its last apply, and restores those that
/// managers of other versions own, of which an object has 11 at most, each in both directions.
const CONVERSION_ROUNDS: usize = 32;

/// What happens when a conversion fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// The write fails.
    Fail,
    /// Managers of that version keep the fields that they own. Whether a client may write does not depend on it.
    Keep,
}

/// An object's JSON without its managed fields.
pub(super) fn without_managed_fields(json: &[u8]) -> Result<Value, Error> {
    let mut value: Value = serde_json::from_slice(json).map_err(Error::internal)?;
    if let Some(meta) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    Ok(value)
}

/// The managers of `object`; none if they cannot be decoded.
pub(crate) fn of(object: Option<&Object>) -> Managed {
    let entries = object.and_then(entries_of);
    entries.and_then(Managed::decode).unwrap_or_default()
}

fn entries_of(object: &Object) -> Option<&[ManagedFieldsEntry]> {
    object.typed().metadata().managed_fields.as_deref()
}

impl Pipeline {
    /// Updates the managed fields of the object that is written: those of the stored object, or those that the client sent.
    pub(super) async fn set_managed_fields(&self, ctx: &Ctx, write: &mut Write<'_>) -> Result<(), Error> {
        let (target, object) = (write.target, &mut *write.object);
        match write.change {
            Change::Create => self.track(ctx, target, None, object).await,
            Change::Update(old, _) => {
                let shown = convert::object(old, target.kind)?;
                self.track(ctx, target, Some(&shown), object).await
            }
            Change::Delete(..) => Ok(()),
        }
    }

    /// Updates the managed fields of `new`: those of `live` (`None`: it is being created) or those that the client sent, and the fields that
    /// this write changes for the writing manager. Both are `target.kind`'s.
    pub(super) async fn track(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        live: Option<&Object>,
        new: &mut dyn AnyObject,
    ) -> Result<(), Error> {
        // An apply has computed the managed fields already.
        let Some(manager) = &ctx.manager else {
            return Ok(());
        };
        // As in Kubernetes no manager owns the fields that a binding sets, so that scheduling a pod does not encode its whole tree.
        if target.subresource == BINDING {
            return Ok(());
        }
        let sent = new.metadata_mut().managed_fields.take();
        if let Some(live) = live
            && let Some(entries) = entries_of(live).filter(|all| !all.is_empty())
            && (!target.subresource.is_empty() || sent.as_deref().is_none_or(|sent| sent == entries))
            && are_of(entries, &target.kind.api_version())
        {
            let json = compared(target, new);
            let by = ManagerId::new(manager, Operation::Update, target.kind, target.subresource);
            let now = super::seconds(ctx.now);
            let after = Managed::update_entries(entries, target.kind, (live.json(), &json), by, now);
            new.metadata_mut().managed_fields = after.map_err(Error::internal)?;
            return Ok(());
        }
        let managed = match sent {
            _ if !target.subresource.is_empty() => of(live),
            sent if is_reset(sent.as_deref()) => Managed::default(),
            sent => sent
                .as_deref()
                .and_then(Managed::decode)
                .filter(|m| !m.is_empty())
                .unwrap_or_else(|| of(live)),
        };
        if managed.is_empty() && live.is_some() {
            return Ok(());
        }
        let by = ManagerId::new(manager, Operation::Update, target.kind, target.subresource);
        let now = super::seconds(ctx.now);
        if live.is_none() && managed.is_empty() {
            new.metadata_mut().managed_fields =
                Managed::create(target.kind, new, by, now).map_err(Error::internal)?;
            return Ok(());
        }
        let mut json = Vec::with_capacity(ENCODED_BYTES);
        new.encode_into(&mut json);
        let after: Value = serde_json::from_slice(&json).map_err(Error::internal)?;
        let before = match live {
            None => Cow::Borrowed(blank(target.kind)),
            Some(live) => Cow::Owned(without_managed_fields(live.json())?),
        };
        let update = |conversions: &mut Conversions| {
            let objects: (&Value, &Value) = (&before, &after);
            managed
                .clone()
                .update_with(target.kind, objects, by.clone(), now, conversions)
        };
        let managed = self.with_conversions(OnFailure::Keep, update).await?;
        new.metadata_mut().managed_fields = managed.encode();
        Ok(())
    }

    /// As [`Pipeline::track`], where the pod differs from the stored one in its conditions only: the rest of both is not encoded and compared.
    pub(super) async fn track_conditions(
        &self,
        ctx: &Ctx,
        target: &Target<'_>,
        live: &Object,
        pod: &mut Pod,
    ) -> Result<(), Error> {
        let stored = live.get::<Pod>();
        let entries =
            entries_of(live).filter(|all| !all.is_empty() && are_of(all, &target.kind.api_version()));
        let (Some(manager), Some(stored), Some(entries)) = (&ctx.manager, stored, entries) else {
            return self.track(ctx, target, Some(live), pod).await;
        };
        let (before, after) = (conditions_alone(stored), conditions_alone(pod));
        let by = ManagerId::new(manager, Operation::Update, target.kind, target.subresource);
        let now = super::seconds(ctx.now);
        let entries = Managed::update_entries(entries, target.kind, (&before, &after), by, now);
        pod.metadata.managed_fields = entries.map_err(Error::internal)?;
        Ok(())
    }

    /// The result of `compute` once all conversions that it needs are done. Without a webhook it is computed once.
    pub(super) async fn with_conversions<T: Send>(
        &self,
        on_failure: OnFailure,
        mut compute: impl FnMut(&mut Conversions) -> T + Send,
    ) -> Result<T, Error> {
        let mut conversions = Conversions::default();
        for _ in 0..CONVERSION_ROUNDS {
            let result = compute(&mut conversions);
            let missing = conversions.missing();
            if missing.is_empty() {
                return Ok(result);
            }
            drop(result);
            for one in missing {
                match self.converter.json(&one.from, &one.to, &one.object).await {
                    Ok(converted) => conversions.add(one, converted),
                    Err(error) if on_failure == OnFailure::Fail => return Err(error),
                    Err(error) => {
                        tracing::warn!(
                            "the managed fields of {:?} cannot be converted and are kept: {error}",
                            one.to
                        );
                        conversions.add_failed(one);
                    }
                }
            }
        }
        Err(Error::internal(format!(
            "the managed fields need more than {CONVERSION_ROUNDS} rounds of conversions"
        )))
    }
}

/// The encoding of an object for [`Managed::update_entries`]: of a pod's status without the specification, the largest part of most pods.
fn compared(target: &Target<'_>, new: &mut dyn AnyObject) -> Vec<u8> {
    let mut json = Vec::with_capacity(ENCODED_BYTES);
    if target.subresource == "status"
        && let Some(pod) = new.as_any_mut().downcast_mut::<Pod>()
    {
        let spec = pod.spec.take();
        pod.encode_into(&mut json);
        pod.spec = spec;
    } else {
        new.encode_into(&mut json);
    }
    json
}

/// The encoding of a pod that has nothing but these conditions.
fn conditions_alone(pod: &Pod) -> Vec<u8> {
    let status = pod.status.as_ref().map(|status| PodStatus {
        conditions: status.conditions.clone(),
        ..PodStatus::default()
    });
    let alone = Pod {
        status,
        ..Pod::default()
    };
    let mut json = Vec::with_capacity(1024);
    alone.encode_into(&mut json);
    json
}

fn are_of(entries: &[ManagedFieldsEntry], api_version: &str) -> bool {
    entries
        .iter()
        .all(|e| e.api_version.as_deref() == Some(api_version))
}

/// Whether as many managed fields of one object have times as of the other: then the times do not change the length of the encoding.
pub(super) fn have_same_number_of_times(a: &dyn AnyObject, b: &dyn AnyObject) -> bool {
    fn times(object: &dyn AnyObject) -> Option<usize> {
        let entries = object.metadata().managed_fields.as_deref()?;
        Some(entries.iter().filter(|e| e.time.is_some()).count())
    }
    times(a) == times(b)
}

/// Whether the managed fields are the same apart from their times.
pub(super) fn same_but_for_times(a: &dyn AnyObject, b: &dyn AnyObject) -> bool {
    fn managers(object: &dyn AnyObject) -> &[ManagedFieldsEntry] {
        object.metadata().managed_fields.as_deref().unwrap_or_default()
    }
    fn same(a: &ManagedFieldsEntry, b: &ManagedFieldsEntry) -> bool {
        a.manager == b.manager
            && a.operation == b.operation
            && a.subresource == b.subresource
            && a.api_version == b.api_version
            && a.fields_type == b.fields_type
            && a.fields_v1 == b.fields_v1
    }
    // They are sorted by time. No manager occurs twice.
    let (a, b) = (managers(a), managers(b));
    a.len() == b.len() && a.iter().all(|one| b.iter().any(|other| same(one, other)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use knarr_api::registry;

    use super::*;

    #[test]
    fn a_pods_specification_is_left_out_where_its_status_is_compared_and_stays_as_it_is() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.spec = Some(PodSpec {
            node_name: Some("n".into()),
            ..PodSpec::default()
        });
        let before = pod.clone();
        let main = Target::main(&registry::POD, "a", "p");
        for (subresource, has_spec) in [("", true), ("status", false), ("resize", true)] {
            let target = Target { subresource, ..main };
            let json: Value = serde_json::from_slice(&compared(&target, &mut pod)).unwrap();
            assert_eq!(json.get("spec").is_some(), has_spec, "{subresource}");
            assert_eq!(json["metadata"]["name"], "p");
            assert_eq!(pod, before);
        }
    }
}
