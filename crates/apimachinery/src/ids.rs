//! The identifiers of nodes and of what runs on them, each a type of its own: none is passed in place of another.
//!
//! Each reads as a `str`, for labels, paths, messages and keys of maps: it hashes, compares and serializes as its text. It is made from text only
//! where text comes in. A clone shares the text.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text.into())
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl From<Arc<str>> for $name {
            fn from(text: Arc<str>) -> Self {
                $name(text)
            }
        }

        impl From<&String> for $name {
            fn from(text: &String) -> Self {
                $name(text.as_str().into())
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().into()
            }
        }

        impl From<&$name> for String {
            fn from(id: &$name) -> Self {
                id.0.as_ref().into()
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                *self.0 == *other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                *self.0 == **other
            }
        }

        impl PartialEq<String> for $name {
            fn eq(&self, other: &String) -> bool {
                *self.0 == **other
            }
        }

        impl PartialEq<$name> for String {
            fn eq(&self, other: &$name) -> bool {
                **self == *other.0
            }
        }

        impl From<$name> for serde_json::Value {
            fn from(id: $name) -> Self {
                serde_json::Value::String(id.into())
            }
        }

        impl PartialEq<$name> for &str {
            fn eq(&self, other: &$name) -> bool {
                **self == *other.0
            }
        }

        impl PartialEq<$name> for str {
            fn eq(&self, other: &$name) -> bool {
                *self == *other.0
            }
        }
    };
}

identifier! {
    /// The runtime's id of a container.
    ContainerId
}
identifier! {
    /// The runtime's id of a pod sandbox.
    SandboxId
}
identifier! {
    /// `metadata.name` of a Node; `spec.nodeName` of a pod that is assigned to it.
    NodeName
}
identifier! {
    /// `metadata.uid` of a pod; of a static pod the hash of its file.
    PodUid
}

impl PodUid {
    /// The UID in a pod's metadata; empty if there is none yet.
    pub fn of(metadata: &ObjectMeta) -> Self {
        metadata.uid.as_deref().unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_identifier_is_a_key_compared_and_serialized_as_its_text() {
        let name = NodeName::from("n1");
        let pods = BTreeMap::from([(name.clone(), 3)]);
        assert_eq!((pods.get("n1"), pods.get("n2")), (Some(&3), None));
        let other = NodeName::from("n2");
        assert_eq!(name, "n1");
        assert!(name < other);
        let json = serde_json::to_string(&pods).unwrap();
        assert_eq!(json, r#"{"n1":3}"#);
        assert_eq!(
            serde_json::from_str::<BTreeMap<NodeName, i32>>(&json).unwrap(),
            pods
        );
        assert_eq!(format!("{name} {name:?}"), r#"n1 "n1""#);
    }

    #[test]
    fn metadata_without_a_uid_has_an_empty_one() {
        let mut metadata = ObjectMeta::default();
        assert!(PodUid::of(&metadata).is_empty());
        metadata.uid = Some("u".into());
        assert_eq!(PodUid::of(&metadata), "u");
    }
}
