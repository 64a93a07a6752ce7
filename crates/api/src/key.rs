//! The key of an object in queues and caches: its namespace and name.

use std::fmt;

use crate::object::Object;

/// Namespace (empty for cluster-scoped objects) and name. Ordered by namespace first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        ObjectKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub fn of(object: &Object) -> Self {
        Self::new(object.namespace(), object.name())
    }
}

/// `namespace/name`, or the bare name of a cluster-scoped object.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
