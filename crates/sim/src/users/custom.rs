//! What users do with CustomResourceDefinitions: they create two of them, change their versions, columns and schemas,
//! delete them and create them again, while others write custom resources through several API servers, and their
//! dependents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knarr_api::{Kind, registry};
use knarr_client::custom_kinds::kind_of;
use knarr_client::{Api, Caches, DeleteOptions, Error, ListOptions, Object, Propagation};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::at_once::{Request, at_once, number_of};
use super::{NAMESPACE, Users, unless_late};
use crate::definitions::{GROUP, KINDS};
use crate::finding::Finding;
use crate::random::Stream;
use crate::servers::ApiServer;

/// So few names of objects that requests collide.
const NAMES: u64 = 5;
/// The most requests at once.
const AT_ONCE: u64 = 5;
/// The time between two attempts to create a definition again, and the number of attempts.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);
const TRIES: u32 = 50;

/// An informer of all custom kinds, and the definitions that should exist.
pub(super) struct CustomKindInformer {
    caches: Arc<Caches>,
    desired: BTreeSet<String>,
}

fn definition_name(plural: &str) -> String {
    format!("{plural}.{GROUP}")
}

fn definition((plural, kind): (&str, &str)) -> Value {
    json!({
        "metadata": {"name": definition_name(plural)},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [version("v1", 0)],
        },
    })
}

/// With so many fields more than every version has.
fn version(name: &str, more: u64) -> Value {
    let mut spec = json!({"size": {"type": "integer"}});
    for number in 0..more {
        spec[format!("more{number}")] = json!({"type": "string", "default": "none"});
    }
    json!({
        "name": name,
        "served": true,
        "storage": name == "v1",
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "spec": {"type": "object", "properties": spec},
        }}},
    })
}

impl Users {
    /// Starts an informer of all custom kinds.
    pub fn add_custom_kind_handler(&mut self, api: Arc<dyn Api>) {
        let caches = Arc::new(Caches::new(api));
        caches.add_custom_kind_handler(|_| {});
        self.following = Some(CustomKindInformer {
            caches,
            desired: BTreeSet::new(),
        });
    }

    fn want(&mut self, plural: &str, desired: bool) {
        if let Some(following) = &mut self.following {
            match desired {
                true => following.desired.insert(plural.into()),
                false => following.desired.remove(plural),
            };
        }
    }

    /// One user action with custom resources.
    pub async fn act_with_custom_resources(
        &mut self,
        chance: &mut Stream,
        servers: &[Arc<ApiServer>],
    ) -> Result<(), Error> {
        let of = KINDS[usize::from(chance.per_mille(400))];
        let done = match chance.between(0, 19) {
            0..3 => self.define(of).await,
            3..6 => self.change_definition(chance, of).await,
            6..8 => self.delete_definition(chance, of).await,
            8..14 => self.write_objects(chance, of, servers).await,
            14..17 => self.create_dependents(chance, of).await,
            _ => self.delete_object(chance, of).await,
        };
        match done {
            // Another write came first, or the kind is not served, or its definition is terminating.
            Err(e) if matches!(e.code(), 404 | 405 | 409) => Ok(()),
            other => other,
        }
    }

    async fn define(&mut self, of: (&str, &str)) -> Result<(), Error> {
        self.note(format!("create customresourcedefinitions {}", of.0));
        self.create(&registry::CUSTOM_RESOURCE_DEFINITION, definition(of))
            .await?;
        self.want(of.0, true);
        Ok(())
    }

    /// Adds or removes a version, a column, or a field of the schema.
    async fn change_definition(
        &mut self,
        chance: &mut Stream,
        (plural, _): (&str, &str),
    ) -> Result<(), Error> {
        let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
        let (what, more) = (chance.between(0, 2), chance.between(1, 3));
        let live = self.api.get(kind, "", &definition_name(plural)).await?;
        let mut value: Value = serde_json::from_slice(live.json()).map_err(Error::internal)?;
        value["metadata"]["resourceVersion"] = live.revision().to_string().into();
        let versions = &mut value["spec"]["versions"];
        let change = match what {
            0 if versions.as_array().is_some_and(|all| all.len() < 2) => {
                let second = version("v2", more);
                if let Some(all) = versions.as_array_mut() {
                    all.push(second);
                }
                "another version"
            }
            1 => {
                let column =
                    json!({"name": format!("Size{more}"), "type": "integer", "jsonPath": ".spec.size"});
                versions[0]["additionalPrinterColumns"] = json!([column]);
                "a column"
            }
            _ => {
                versions[0]["schema"] = version("v1", more)["schema"].clone();
                "fields"
            }
        };
        self.note(format!("change customresourcedefinitions {plural}: {change}"));
        let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
        let object = kind.ops.decode(&bytes).map_err(Error::internal)?.object;
        self.api.update(kind, object, "").await.map(drop)
    }

    /// In half of the cases it is created again as soon as it was removed from the store.
    async fn delete_definition(&mut self, chance: &mut Stream, of: (&str, &str)) -> Result<(), Error> {
        let again = chance.per_mille(600);
        self.note(format!(
            "delete customresourcedefinitions {}, again: {again}",
            of.0
        ));
        let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
        let (name, options) = (definition_name(of.0), DeleteOptions::default());
        self.api.delete(kind, "", &name, options).await?;
        self.want(of.0, false);
        for _ in 0..if again { TRIES } else { 0 } {
            match self.define(of).await {
                Err(e) if e.is_already_exists() => sleep(AGAIN).await,
                other => return other,
            }
        }
        Ok(())
    }

    /// The kind as it is served now.
    async fn kind(&self, plural: &str) -> Result<Option<Kind>, Error> {
        let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
        let live = self.api.get(kind, "", &definition_name(plural)).await?;
        Ok(kind_of(&live))
    }

    /// Several users create, change and delete objects at the same time, each through a server of their own.
    async fn write_objects(
        &mut self,
        chance: &mut Stream,
        (plural, _): (&str, &str),
        servers: &[Arc<ApiServer>],
    ) -> Result<(), Error> {
        let count = chance.between(1, AT_ONCE);
        let mut requests = Vec::new();
        let drawn: Vec<_> = (0..count)
            .map(|_| {
                let (name, what) = (chance.between(1, NAMES), chance.between(0, 9));
                (name, what, number_of(chance, servers), chance.between(0, 9))
            })
            .collect();
        let Some(kind) = self.kind(plural).await? else {
            return Ok(());
        };
        self.note(format!("write {count} {plural} at once"));
        for (name, what, server, size) in drawn {
            let name = format!("{}{name}", plural.get(..1).unwrap_or_default());
            let object = json!({
                "apiVersion": format!("{GROUP}/{}", kind.version()),
                "kind": kind.kind(),
                "metadata": {"namespace": NAMESPACE, "name": name},
                "spec": {"size": size},
            });
            let request = match what {
                0..5 => Request::Create(kind.clone(), object),
                5..8 => Request::Patch(kind.clone(), NAMESPACE, name, json!({"spec": {"size": size}})),
                _ => Request::Delete(kind.clone(), NAMESPACE, name),
            };
            requests.push((server, request));
        }
        at_once(servers, requests).await
    }

    async fn objects(&self, plural: &str) -> Result<Option<(Kind, Vec<Arc<Object>>)>, Error> {
        let Some(kind) = self.kind(plural).await? else {
            return Ok(None);
        };
        let options = ListOptions {
            namespace: NAMESPACE.into(),
            ..ListOptions::default()
        };
        let items = self.api.list(&kind, options).await?.items;
        Ok(Some((kind, items)))
    }

    /// ConfigMaps owned by an object, which are to be collected after it.
    async fn create_dependents(
        &mut self,
        chance: &mut Stream,
        (plural, _): (&str, &str),
    ) -> Result<(), Error> {
        let Some((kind, objects)) = self.objects(plural).await? else {
            return Ok(());
        };
        let Some(owner) = chance.pick(&objects) else {
            return Ok(());
        };
        let number = chance.between(1, 99);
        let name = format!("part-{number}");
        self.note(format!("create configmaps {name} of {plural} {}", owner.name()));
        let map = json!({"metadata": {
            "namespace": NAMESPACE,
            "name": name,
            "ownerReferences": [{
                "apiVersion": format!("{GROUP}/{}", kind.version()),
                "kind": kind.kind(),
                "name": owner.name(),
                "uid": owner.uid(),
                "blockOwnerDeletion": chance.per_mille(500),
            }],
        }});
        self.create(&registry::CONFIG_MAP, map).await.map(drop)
    }

    async fn delete_object(&mut self, chance: &mut Stream, (plural, _): (&str, &str)) -> Result<(), Error> {
        let Some((kind, objects)) = self.objects(plural).await? else {
            return Ok(());
        };
        let foreground = chance.per_mille(400);
        let Some(object) = chance.pick(&objects) else {
            return Ok(());
        };
        self.note(format!(
            "delete {plural} {}, foreground: {foreground}",
            object.name()
        ));
        let propagation = match foreground {
            true => Propagation::Foreground,
            false => Propagation::Background,
        };
        let options = DeleteOptions {
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        let deleted = self.api.delete(&kind, NAMESPACE, object.name(), options);
        unless_late(deleted.await)
    }

    /// How the definitions and their objects differ from the desired state: every server lists what is stored, and so
    /// does the informer.
    pub(super) async fn missing_of_custom_resources(
        &self,
        servers: &[Arc<ApiServer>],
    ) -> Result<Option<Finding>, Error> {
        let Some(following) = &self.following else {
            return Ok(None);
        };
        for (plural, _) in KINDS {
            let desired = following.desired.contains(plural);
            let kind = match self.kind(plural).await {
                Ok(Some(kind)) => kind,
                Ok(None) => {
                    return Ok(Some(Finding(format!(
                        "the definition of {plural} is not established"
                    ))));
                }
                Err(e) if e.is_not_found() && !desired => continue,
                Err(e) if e.is_not_found() => {
                    return Ok(Some(Finding(format!("the definition of {plural} has been lost"))));
                }
                Err(e) => return Err(e),
            };
            let stored: BTreeMap<String, String> = self.observer.world(|world| {
                let objects = world.definitions.objects_of(plural);
                objects
                    .map(|(key, kept)| {
                        (
                            key.rsplit('/').next().unwrap_or_default().into(),
                            kept.uid.clone(),
                        )
                    })
                    .collect()
            });
            let found = |objects: Vec<Arc<Object>>| -> BTreeMap<String, String> {
                let named = objects
                    .iter()
                    .map(|o| (o.name().to_string(), o.uid().to_string()));
                named.collect()
            };
            for server in servers {
                let Some(api) = server.admin() else { continue };
                let listed = match api.list(&kind, ListOptions::default()).await {
                    Ok(list) => found(list.items),
                    Err(e) => {
                        return Ok(Some(Finding(format!(
                            "{} does not list {plural}: {e}",
                            server.name
                        ))));
                    }
                };
                if listed != stored {
                    return Ok(Some(Finding(format!(
                        "{} lists {listed:?}, stored are {stored:?}",
                        server.name
                    ))));
                }
            }
            let followed = following
                .caches
                .existing(&kind)
                .map(|store| found(store.list("")));
            if followed.as_ref() != Some(&stored) {
                return Ok(Some(Finding(format!(
                    "an informer has the {plural} {followed:?}, stored are {stored:?}"
                ))));
            }
        }
        Ok(None)
    }
}
