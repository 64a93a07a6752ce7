//! What drivers and administrators have published: ResourceSlices by pool, DeviceClasses by name, and the selectors
//! of both, compiled once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{DeviceClass, DeviceSelector, ResourceSlice};
use knarr_api::kinds::pod::resources::DEVICE_CLASS_PREFIX;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::ids::NodeName;
use knarr_cel::ExpressionError;
use knarr_cel::device::Selector;

use super::pools::{Pool, PoolKey, PoolSlices, gather, has_counters};
use crate::node_info::NodeInfo;

/// The most compiled selectors that are cached; all are dropped when there are more. Each is a few KiB.
const SELECTORS_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Inventory {
    pools: BTreeMap<PoolKey, PoolSlices>,
    /// Pools with slices for one node only, by that node's name.
    of_node: BTreeMap<NodeName, BTreeMap<PoolKey, usize>>,
    /// Pools with slices that any node may use, or with counters.
    shared: BTreeMap<PoolKey, usize>,
    classes: BTreeMap<String, Shared<DeviceClass>>,
    /// The DeviceClass that provides each extended resource, by the resource's name.
    class_of_resource: BTreeMap<String, String>,
    /// Its keys.
    class_resources: Arc<BTreeSet<String>>,
    /// By their text.
    selectors: BTreeMap<String, Compiled>,
}

type Compiled = Result<Arc<Selector>, ExpressionError>;

fn compiled(text: &str) -> Compiled {
    Selector::compile(text).map(Arc::new)
}

impl Inventory {
    /// A slice was added, updated or deleted.
    pub fn set_slice(
        &mut self,
        before: Option<&Shared<ResourceSlice>>,
        after: Option<&Shared<ResourceSlice>>,
    ) {
        if let Some(before) = before {
            let key = pool_key(before);
            let known = self.pools.get_mut(&key);
            if known.is_some_and(|pool| pool.remove(before.object().name()).is_some()) {
                if self.pools.get(&key).is_some_and(BTreeMap::is_empty) {
                    self.pools.remove(&key);
                }
                self.count(before, &key, false);
            }
        }
        if let Some(after) = after {
            let key = pool_key(after);
            let name = after.object().name().to_string();
            let pool = self.pools.entry(key.clone()).or_default();
            if let Some(replaced) = pool.insert(name, after.clone()) {
                self.count(&replaced, &key, false);
            }
            self.count(after, &key, true);
        }
    }

    fn count(&mut self, slice: &ResourceSlice, key: &PoolKey, came: bool) {
        let node = slice.spec.node_name.as_deref().filter(|n| !n.is_empty());
        let node = node.filter(|_| !has_counters(slice));
        let counts = match node {
            Some(node) => self.of_node.entry(node.into()).or_default(),
            None => &mut self.shared,
        };
        let count = counts.entry(key.clone()).or_default();
        *count = if came { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            counts.remove(key);
        }
        if let Some(node) = node
            && self.of_node.get(node).is_some_and(BTreeMap::is_empty)
        {
            self.of_node.remove(node);
        }
    }

    pub fn set_class(&mut self, name: &str, class: Option<Shared<DeviceClass>>) {
        match class {
            Some(class) => {
                self.compile(class.spec.selectors.as_deref());
                self.classes.insert(name.to_string(), class)
            }
            None => self.classes.remove(name),
        };
        let class_of_resource = extended_resources(&self.classes);
        if self.class_of_resource != class_of_resource {
            let resources: BTreeSet<String> = class_of_resource.keys().cloned().collect();
            if *self.class_resources != resources {
                self.class_resources = Arc::new(resources);
            }
            self.class_of_resource = class_of_resource;
        }
    }

    /// The class that provides this extended resource.
    pub fn class_of_resource(&self, resource: &str) -> Option<&str> {
        self.class_of_resource.get(resource).map(String::as_str)
    }

    /// The extended resources that DeviceClasses provide.
    pub fn class_resources(&self) -> &Arc<BTreeSet<String>> {
        &self.class_resources
    }

    /// Compiles selectors that are evaluated often.
    pub fn compile(&mut self, selectors: Option<&[DeviceSelector]>) {
        for text in selectors.into_iter().flatten().filter_map(|s| s.cel.as_ref()) {
            if self.selectors.contains_key(&text.expression) {
                continue;
            }
            if self.selectors.len() >= SELECTORS_MAX {
                self.selectors.clear();
            }
            let compiled = compiled(&text.expression);
            self.selectors.insert(text.expression.clone(), compiled);
        }
    }

    pub fn class(&self, name: &str) -> Option<&Shared<DeviceClass>> {
        self.classes.get(name)
    }

    /// The pools that a node can use.
    pub fn pools(&self, node: &NodeInfo) -> Vec<Pool<'_>> {
        let mut keys: BTreeSet<&PoolKey> = self.shared.keys().collect();
        keys.extend(self.of_node.get(&node.name).into_iter().flat_map(BTreeMap::keys));
        gather(
            keys.into_iter().filter_map(|key| self.pools.get_key_value(key)),
            node,
        )
    }

    /// The compiled selector of this text.
    pub fn selector(&self, text: &str) -> Compiled {
        match self.selectors.get(text) {
            Some(known) => known.clone(),
            None => compiled(text),
        }
    }
}

fn pool_key(slice: &ResourceSlice) -> PoolKey {
    (slice.spec.driver.clone(), slice.spec.pool.name.clone())
}

/// Which class provides which extended resource: the newest one that names it, of equally old ones the first by name;
/// and each class provides [`DEVICE_CLASS_PREFIX`] with its own name.
fn extended_resources(classes: &BTreeMap<String, Shared<DeviceClass>>) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let created = |name: &str| {
        let class = classes.get(name)?;
        class.metadata.creation_timestamp.as_ref().map(|at| at.0)
    };
    for (name, class) in classes {
        all.insert(format!("{DEVICE_CLASS_PREFIX}{name}"), name.clone());
        let Some(resource) = &class.spec.extended_resource_name else {
            continue;
        };
        let newest = all.entry(resource.clone()).or_insert_with(|| name.clone());
        if created(name) > created(newest) {
            newest.clone_from(name);
        }
    }
    all
}
