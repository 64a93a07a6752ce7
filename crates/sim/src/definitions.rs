//! The CustomResourceDefinitions of the users' group in the store, their custom resources and the dependents of
//! these, after every commit.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::k8s_openapi;
use serde::Deserialize;

/// The group of all definitions that users create.
pub(crate) const GROUP: &str = "sim.knarr.dev";
/// The kinds that users define: plural name and kind.
pub(crate) const KINDS: [(&str, &str); 2] = [("widgets", "Widget"), ("gadgets", "Gadget")];
const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions/";
/// The key prefix of dependents of custom resources.
const DEPENDENTS: &str = "core/configmaps/default/";

/// The fields of an object that rules need.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    deletion_timestamp: Option<String>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Deserialize)]
struct Stored {
    metadata: Metadata,
}

/// A definition or a custom resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredObject {
    pub uid: String,
    pub is_deleted: bool,
}

/// The custom resource that a dependent belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: String,
    /// The plural name of its kind.
    pub plural: String,
}

/// The kind of the last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastWrite {
    /// Nothing of this group.
    #[default]
    Other,
    /// A custom resource of this plural name was created.
    Created { plural: String },
    /// A definition of this plural name was created.
    Defined { plural: String },
    /// A definition of this plural name was removed from the store.
    Undefined { plural: String },
    /// A dependent of the object with this UID was removed from the store.
    Collected { owner: String },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    /// By plural name.
    pub definitions: BTreeMap<String, StoredObject>,
    /// By plural name and key.
    pub objects: BTreeMap<(String, String), StoredObject>,
    /// The owner of each dependent, by the dependent's key.
    pub dependents: BTreeMap<String, Owner>,
    pub last: LastWrite,
    /// The custom resource that was removed last: its key and the object.
    pub removed: Option<(String, Vec<u8>)>,
    /// By key, as they are stored.
    values: BTreeMap<String, Vec<u8>>,
}

fn read(value: Option<&[u8]>) -> Option<(StoredObject, Vec<OwnerReference>)> {
    let stored: Stored = serde_json::from_slice(value?).ok()?;
    let object = StoredObject {
        uid: stored.metadata.uid,
        is_deleted: stored.metadata.deletion_timestamp.is_some(),
    };
    Some((object, stored.metadata.owner_references))
}

impl Definitions {
    /// Applies the write of one key. Returns whether it is one of these objects.
    pub fn take_in(&mut self, path: &str, value: Option<&[u8]>) -> bool {
        self.last = LastWrite::Other;
        if let Some(name) = path.strip_prefix(DEFINITIONS) {
            let Some(plural) = name.strip_suffix(GROUP).and_then(|name| name.strip_suffix('.')) else {
                return false;
            };
            self.define(plural, read(value).map(|(stored, _)| stored));
        } else if let Some(rest) = path.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix('/')) {
            let Some((plural, _)) = rest.split_once('/') else {
                return false;
            };
            self.write(plural, path, value);
        } else if path.starts_with(DEPENDENTS) {
            self.depend(path, value);
        } else {
            return false;
        }
        true
    }

    fn define(&mut self, plural: &str, stored: Option<StoredObject>) {
        let plural = plural.to_string();
        let before = match stored {
            Some(stored) => self.definitions.insert(plural.clone(), stored),
            None => self.definitions.remove(&plural),
        };
        self.last = match (before, self.definitions.contains_key(&plural)) {
            (None, true) => LastWrite::Defined { plural },
            (Some(_), false) => LastWrite::Undefined { plural },
            _ => LastWrite::Other,
        };
    }

    fn write(&mut self, plural: &str, path: &str, value: Option<&[u8]>) {
        let key = (plural.to_string(), path.to_string());
        match read(value) {
            Some((stored, _)) => {
                let before = self.objects.insert(key, stored);
                self.values
                    .insert(path.into(), value.unwrap_or_default().to_vec());
                if before.is_none() {
                    self.last = LastWrite::Created {
                        plural: plural.into(),
                    };
                }
            }
            None => {
                self.objects.remove(&key);
                self.removed = self.values.remove_entry(path);
            }
        }
    }

    fn depend(&mut self, path: &str, value: Option<&[u8]>) {
        let owners = read(value).map(|(_, owners)| owners).unwrap_or_default();
        let of_group = |owner: &&OwnerReference| owner.api_version.starts_with(GROUP);
        let owner = owners.iter().find(of_group).and_then(|owner| {
            let (plural, _) = KINDS.into_iter().find(|(_, kind)| *kind == owner.kind)?;
            Some(Owner {
                uid: owner.uid.clone(),
                plural: plural.into(),
            })
        });
        match owner {
            Some(owner) => drop(self.dependents.insert(path.into(), owner)),
            None => {
                if let Some(owner) = self.dependents.remove(path) {
                    self.last = LastWrite::Collected { owner: owner.uid };
                }
            }
        }
    }

    /// The keys of the objects of a plural name.
    pub fn objects_of<'a>(&'a self, plural: &'a str) -> impl Iterator<Item = (&'a str, &'a StoredObject)> {
        let all = self.objects.iter().filter(move |((of, _), _)| of == plural);
        all.map(|((_, key), stored)| (key.as_str(), stored))
    }

    pub fn object_with(&self, uid: &str) -> Option<&StoredObject> {
        self.objects.values().find(|stored| stored.uid == uid)
    }
}
