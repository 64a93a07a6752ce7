//! CustomResourceDefinitions of the users' group as the store has them, their objects, and what belongs to these objects, after
//! every commit.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::k8s_openapi;
use serde::Deserialize;

/// The group of all definitions that users create.
pub(crate) const GROUP: &str = "sim.knarr.dev";
const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions/";
/// Where what belongs to custom resources is.
const DEPENDENTS: &str = "core/configmaps/default/";

/// Of an object, what rules ask for.
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
pub(crate) struct Kept {
    pub uid: String,
    pub is_deleted: bool,
}

/// What the last write was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Last {
    /// Nothing of this group.
    #[default]
    Other,
    /// A custom resource of this plural name was created.
    Created { plural: String },
    /// A definition of this plural name was created.
    Defined { plural: String },
    /// A definition of this plural name left the store.
    Undefined { plural: String },
    /// What belonged to the object of this uid left the store.
    Collected { owner: String },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    /// By plural name.
    pub definitions: BTreeMap<String, Kept>,
    /// By plural name and key.
    pub objects: BTreeMap<(String, String), Kept>,
    /// The uid of the owner of each dependent, by key.
    pub dependents: BTreeMap<String, String>,
    pub last: Last,
    /// The custom resource that left the store last: its key and what it was.
    pub removed: Option<(String, Vec<u8>)>,
    /// By key, as they are stored.
    values: BTreeMap<String, Vec<u8>>,
}

fn read(value: Option<&[u8]>) -> Option<(Kept, Vec<OwnerReference>)> {
    let stored: Stored = serde_json::from_slice(value?).ok()?;
    let kept = Kept {
        uid: stored.metadata.uid,
        is_deleted: stored.metadata.deletion_timestamp.is_some(),
    };
    Some((kept, stored.metadata.owner_references))
}

impl Definitions {
    /// Takes one key in as the store has it now. Whether it is one of these.
    pub fn take_in(&mut self, path: &str, value: Option<&[u8]>) -> bool {
        self.last = Last::Other;
        if let Some(name) = path.strip_prefix(DEFINITIONS) {
            let Some(plural) = name.strip_suffix(GROUP).and_then(|name| name.strip_suffix('.')) else {
                return false;
            };
            self.define(plural, read(value).map(|(kept, _)| kept));
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

    fn define(&mut self, plural: &str, kept: Option<Kept>) {
        let plural = plural.to_string();
        let before = match kept {
            Some(kept) => self.definitions.insert(plural.clone(), kept),
            None => self.definitions.remove(&plural),
        };
        self.last = match (before, self.definitions.contains_key(&plural)) {
            (None, true) => Last::Defined { plural },
            (Some(_), false) => Last::Undefined { plural },
            _ => Last::Other,
        };
    }

    fn write(&mut self, plural: &str, path: &str, value: Option<&[u8]>) {
        let key = (plural.to_string(), path.to_string());
        match read(value) {
            Some((kept, _)) => {
                let before = self.objects.insert(key, kept);
                self.values
                    .insert(path.into(), value.unwrap_or_default().to_vec());
                if before.is_none() {
                    self.last = Last::Created {
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
        let owner = owners.iter().find(of_group).map(|owner| owner.uid.clone());
        match owner {
            Some(owner) => drop(self.dependents.insert(path.into(), owner)),
            None => {
                if let Some(owner) = self.dependents.remove(path) {
                    self.last = Last::Collected { owner };
                }
            }
        }
    }

    /// The keys of the objects of a plural name.
    pub fn objects_of<'a>(&'a self, plural: &'a str) -> impl Iterator<Item = (&'a str, &'a Kept)> {
        let all = self.objects.iter().filter(move |((of, _), _)| of == plural);
        all.map(|((_, key), kept)| (key.as_str(), kept))
    }

    pub fn object_with(&self, uid: &str) -> Option<&Kept> {
        self.objects.values().find(|kept| kept.uid == uid)
    }
}
