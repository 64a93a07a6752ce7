//! The requests of claims, read once: what each variant of a request asks for, and which devices it may have.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceSelector, DeviceToleration, ExactDeviceRequest, ResourceClaim,
};
use knarr_api::cel::device::Device as Seen;
use knarr_api::k8s_openapi;

use super::{AllocationError, Candidate, claim_name};
use crate::dynamic_resources::capacity::has_room;
use crate::dynamic_resources::pools::{Pool, PoolState, device_matches, devices};
use crate::dynamic_resources::{AllocatedState, Consumed, Inventory};
use crate::node_info::NodeInfo;

/// Numbers of claim, request and variant.
type VariantKey = (usize, usize, usize);

/// `exactly`, or one of `firstAvailable`.
#[derive(Debug)]
pub(super) struct Variant<'a> {
    /// As results name it: `request` or `request/subrequest`.
    pub name: String,
    /// The request's own name.
    pub base: &'a str,
    pub class: &'a DeviceClass,
    pub selectors: &'a [DeviceSelector],
    pub tolerations: &'a [DeviceToleration],
    pub capacity: Option<&'a CapacityRequirements>,
    pub admin_access: bool,
    pub devices: usize,
    /// All devices that there are for it, where it asks for all.
    pub all: Option<Vec<Candidate<'a>>>,
    key: VariantKey,
}

/// A request with its variants, the best first.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub variants: Vec<Variant<'a>>,
    /// Which is used in the solution.
    pub chosen: usize,
    pub is_prioritized_list: bool,
}

/// What the API says of a variant.
struct Asked<'a> {
    name: String,
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    selectors: Option<&'a [DeviceSelector]>,
    tolerations: Option<&'a [DeviceToleration]>,
    capacity: Option<&'a CapacityRequirements>,
    admin_access: bool,
}

impl<'a> Request<'a> {
    pub(super) fn of_claim(
        index: usize,
        claim: &'a ResourceClaim,
        pools: &[Pool<'a>],
        matcher: &mut Matcher<'a>,
    ) -> Result<Vec<Self>, AllocationError> {
        let devices = claim.spec.devices.as_ref();
        let requests = devices.and_then(|d| d.requests.as_ref()).into_iter().flatten();
        let mut all = Vec::new();
        for (at, request) in requests.enumerate() {
            let alternatives = request.first_available.as_deref().unwrap_or_default();
            let asked: Vec<Asked<'a>> = if alternatives.is_empty() {
                let exactly: Option<&ExactDeviceRequest> = request.exactly.as_ref();
                let asked = exactly.map(|exactly| Asked {
                    name: request.name.clone(),
                    class: &exactly.device_class_name,
                    mode: exactly.allocation_mode.as_deref(),
                    count: exactly.count,
                    selectors: exactly.selectors.as_deref(),
                    tolerations: exactly.tolerations.as_deref(),
                    capacity: exactly.capacity.as_ref(),
                    admin_access: exactly.admin_access == Some(true),
                });
                asked.into_iter().collect()
            } else {
                let asked = alternatives.iter().map(|sub| Asked {
                    name: format!("{}/{}", request.name, sub.name),
                    class: &sub.device_class_name,
                    mode: sub.allocation_mode.as_deref(),
                    count: sub.count,
                    selectors: sub.selectors.as_deref(),
                    tolerations: sub.tolerations.as_deref(),
                    capacity: sub.capacity.as_ref(),
                    admin_access: false,
                });
                asked.collect()
            };
            if asked.is_empty() {
                return Err(problem(claim, &request.name, "unknown request type"));
            }
            let variants = asked.into_iter().enumerate();
            let variants = variants
                .map(|(n, asked)| Variant::read(asked, &request.name, (index, at, n), claim, pools, matcher));
            all.push(Request {
                variants: variants.collect::<Result<_, _>>()?,
                chosen: 0,
                is_prioritized_list: !alternatives.is_empty(),
            });
        }
        Ok(all)
    }

    pub(super) fn least_devices(&self) -> usize {
        self.variants.iter().map(|v| v.devices).min().unwrap_or(0)
    }

    pub(super) fn most_devices(&self) -> usize {
        self.variants.iter().map(|v| v.devices).max().unwrap_or(0)
    }
}

fn problem(claim: &ResourceClaim, request: &str, problem: impl Into<String>) -> AllocationError {
    AllocationError::Request {
        claim: claim_name(claim),
        request: request.to_string(),
        problem: problem.into(),
    }
}

impl<'a> Variant<'a> {
    fn read(
        asked: Asked<'a>,
        base: &'a str,
        key: VariantKey,
        claim: &'a ResourceClaim,
        pools: &[Pool<'a>],
        matcher: &mut Matcher<'a>,
    ) -> Result<Self, AllocationError> {
        // Messages name a subrequest without its request.
        let own = asked.name.rsplit('/').next().unwrap_or_default().to_string();
        let wrong = |why: String| problem(claim, &own, why);
        if asked.class.is_empty() {
            return Err(wrong(
                "missing device class name (unsupported request type?)".into(),
            ));
        }
        let Some(class) = matcher.inventory.class(asked.class) else {
            let class = asked.class;
            return Err(wrong(format!(
                "could not retrieve device class {class}: deviceclass.resource.k8s.io {class:?} not found"
            )));
        };
        let mut variant = Variant {
            name: asked.name,
            base,
            class,
            selectors: asked.selectors.unwrap_or_default(),
            tolerations: asked.tolerations.unwrap_or_default(),
            capacity: asked.capacity,
            admin_access: asked.admin_access,
            devices: 0,
            all: None,
            key,
        };
        if let Some(index) = variant.selectors.iter().position(|s| s.cel.is_none()) {
            let why = format!("selector #{index}: CEL expression empty (unsupported selector type?)");
            return Err(wrong(why));
        }
        match asked.mode {
            // Both are the API's defaults.
            None | Some("" | "ExactCount") => {
                let count = asked.count.unwrap_or(1);
                let too_many = || wrong(format!("exact count {count} is too large"));
                variant.devices = usize::try_from(count).map_err(|_| too_many())?;
            }
            Some("All") => {
                let all = variant.all_devices(claim, &own, pools, matcher)?;
                variant.devices = all.len();
                variant.all = Some(all);
            }
            Some(mode) => return Err(wrong(format!("unsupported count mode {mode}"))),
        }
        Ok(variant)
    }

    fn all_devices(
        &self,
        claim: &'a ResourceClaim,
        own: &str,
        pools: &[Pool<'a>],
        matcher: &mut Matcher<'a>,
    ) -> Result<Vec<Candidate<'a>>, AllocationError> {
        let mut all = Vec::new();
        for (at, pool) in pools.iter().enumerate() {
            let is = match pool.state {
                PoolState::Complete => "",
                PoolState::Incomplete => "being updated",
                PoolState::Invalid(_) => "invalid",
            };
            if !is.is_empty() {
                let id = format!("{}/{}", pool.driver, pool.name);
                let why = format!("asks for all devices, but resource pool {id} is currently {is}");
                return Err(problem(claim, own, why));
            }
            for slice in &pool.slices {
                for device in devices(slice) {
                    let candidate = Candidate {
                        pool: at,
                        slice,
                        device,
                    };
                    if matcher.selects(self, claim, &candidate)? && matcher.has_room(self, &candidate, None) {
                        all.push(candidate);
                    }
                }
            }
        }
        Ok(all)
    }
}

/// Says whether a device is what a variant asks for, and remembers it: selectors are dear.
pub(super) struct Matcher<'a> {
    pub inventory: &'a Inventory,
    pub node: &'a NodeInfo,
    pub allocated: &'a AllocatedState,
    known: BTreeMap<(VariantKey, usize, &'a str), bool>,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(inventory: &'a Inventory, node: &'a NodeInfo, allocated: &'a AllocatedState) -> Self {
        Matcher {
            inventory,
            node,
            allocated,
            known: BTreeMap::new(),
        }
    }

    pub(super) fn selects(
        &mut self,
        variant: &Variant<'a>,
        claim: &ResourceClaim,
        candidate: &Candidate<'a>,
    ) -> Result<bool, AllocationError> {
        let key = (variant.key, candidate.pool, candidate.device.name.as_str());
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let class = || {
            format!(
                "class {}",
                variant.class.metadata.name.as_deref().unwrap_or_default()
            )
        };
        let of_class = variant.class.spec.selectors.as_deref().unwrap_or_default();
        let per_device = candidate.slice.spec.per_device_node_selection == Some(true);
        let selects = self.holds(of_class, candidate, &class)?
            && self.holds(variant.selectors, candidate, &|| {
                format!("claim {}", claim_name(claim))
            })?
            && (!per_device || device_matches(self.node, candidate.device));
        self.known.insert(key, selects);
        Ok(selects)
    }

    fn holds(
        &self,
        selectors: &[DeviceSelector],
        candidate: &Candidate<'_>,
        of: &dyn Fn() -> String,
    ) -> Result<bool, AllocationError> {
        let device = candidate.device;
        let seen = Seen {
            driver: &candidate.slice.spec.driver,
            allow_multiple_allocations: candidate.allows_multiple_allocations(),
            attributes: device.attributes.as_ref(),
            capacity: device.capacity.as_ref(),
        };
        for (index, selector) in selectors.iter().enumerate() {
            let text = selector.cel.as_ref().map(|c| c.expression.as_str());
            let error = |stage, problem| AllocationError::Selector {
                of: of(),
                index,
                stage,
                problem,
            };
            let selector = self.inventory.selector(text.unwrap_or_default());
            let selector = selector.map_err(|e| error("compile", e))?;
            if !selector.matches(&seen).map_err(|e| error("runtime", e))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the device's capacities are enough, beside what is consumed of them already and what of them the
    /// solution so far consumes.
    pub(super) fn has_room(
        &self,
        variant: &Variant<'_>,
        candidate: &Candidate<'_>,
        allocating: Option<&Consumed>,
    ) -> bool {
        let shares = self.allocated.shared.get(&candidate.id());
        let mut taken: Vec<&Consumed> = shares.into_iter().map(|s| &s.consumed).collect();
        taken.extend(allocating);
        let capacity = candidate.device.capacity.as_ref();
        // A device that cannot be compared is passed over.
        has_room(variant.capacity, capacity, &taken).unwrap_or(false)
    }
}
