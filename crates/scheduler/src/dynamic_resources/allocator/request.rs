//! The requests of claims, parsed once: what each variant of a request needs, and which devices match it.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceSelector, DeviceToleration, ExactDeviceRequest, ResourceClaim,
};
use knarr_api::k8s_openapi;
use knarr_cel::device::Device as Seen;

use super::{AllocationError, Candidate, claim_name};
use crate::dynamic_resources::capacity::has_room;
use crate::dynamic_resources::pools::{Pool, PoolState, device_matches, devices};
use crate::dynamic_resources::{AllocatedState, Consumed, Inventory};
use crate::node_info::NodeInfo;

/// Indices of claim, request and variant.
type VariantKey = (usize, usize, usize);

/// `exactly`, or one of `firstAvailable`.
#[derive(Debug)]
pub(super) struct Variant<'a> {
    /// As the allocation result names it: `request` or `request/subrequest`.
    pub name: String,
    /// The request's own name.
    pub base: &'a str,
    pub class: &'a DeviceClass,
    pub selectors: &'a [DeviceSelector],
    pub tolerations: &'a [DeviceToleration],
    pub capacity: Option<&'a CapacityRequirements>,
    pub admin_access: bool,
    pub devices: usize,
    /// All devices that match, if the allocation mode is All.
    pub all: Option<Vec<Candidate<'a>>>,
    key: VariantKey,
}

/// A request with its variants, the preferred one first.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub variants: Vec<Variant<'a>>,
    /// The variant that the solution uses.
    pub chosen: usize,
    pub is_prioritized_list: bool,
}

/// The fields of a variant in the API.
struct RequestFields<'a> {
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
            let fields: Vec<RequestFields<'a>> = if alternatives.is_empty() {
                let exactly: Option<&ExactDeviceRequest> = request.exactly.as_ref();
                let fields = exactly.map(|exactly| RequestFields {
                    name: request.name.clone(),
                    class: &exactly.device_class_name,
                    mode: exactly.allocation_mode.as_deref(),
                    count: exactly.count,
                    selectors: exactly.selectors.as_deref(),
                    tolerations: exactly.tolerations.as_deref(),
                    capacity: exactly.capacity.as_ref(),
                    admin_access: exactly.admin_access == Some(true),
                });
                fields.into_iter().collect()
            } else {
                let fields = alternatives.iter().map(|sub| RequestFields {
                    name: format!("{}/{}", request.name, sub.name),
                    class: &sub.device_class_name,
                    mode: sub.allocation_mode.as_deref(),
                    count: sub.count,
                    selectors: sub.selectors.as_deref(),
                    tolerations: sub.tolerations.as_deref(),
                    capacity: sub.capacity.as_ref(),
                    admin_access: false,
                });
                fields.collect()
            };
            if fields.is_empty() {
                return Err(problem(claim, &request.name, "unknown request type"));
            }
            let variants = fields.into_iter().enumerate();
            let variants = variants.map(|(n, fields)| {
                Variant::read(fields, &request.name, (index, at, n), claim, pools, matcher)
            });
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
        fields: RequestFields<'a>,
        base: &'a str,
        key: VariantKey,
        claim: &'a ResourceClaim,
        pools: &[Pool<'a>],
        matcher: &mut Matcher<'a>,
    ) -> Result<Self, AllocationError> {
        // Messages name a subrequest without its request.
        let own = fields.name.rsplit('/').next().unwrap_or_default().to_string();
        let wrong = |why: String| problem(claim, &own, why);
        if fields.class.is_empty() {
            return Err(wrong(
                "missing device class name (unsupported request type?)".into(),
            ));
        }
        let Some(class) = matcher.inventory.class(fields.class) else {
            let class = fields.class;
            return Err(wrong(format!(
                "could not retrieve device class {class}: deviceclass.resource.k8s.io {class:?} not found"
            )));
        };
        let mut variant = Variant {
            name: fields.name,
            base,
            class,
            selectors: fields.selectors.unwrap_or_default(),
            tolerations: fields.tolerations.unwrap_or_default(),
            capacity: fields.capacity,
            admin_access: fields.admin_access,
            devices: 0,
            all: None,
            key,
        };
        if let Some(index) = variant.selectors.iter().position(|s| s.cel.is_none()) {
            let why = format!("selector #{index}: CEL expression empty (unsupported selector type?)");
            return Err(wrong(why));
        }
        match fields.mode {
            // Both are the defaults of the API.
            None | Some("" | "ExactCount") => {
                let count = fields.count.unwrap_or(1);
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

/// Evaluates whether a device matches a variant, and caches the result: CEL selectors are expensive.
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
            let selector = self.inventory.selector(text.unwrap_or_default());
            let selector = selector.map_err(|source| AllocationError::Selector {
                of: of(),
                index,
                source,
            })?;
            let matches = selector.matches(&seen);
            let matches = matches.map_err(|source| AllocationError::Match {
                of: of(),
                index,
                source,
            })?;
            if !matches {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the device has enough capacity, in addition to what allocations and the solution so far consume.
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
        // A device that cannot be compared is skipped.
        has_room(variant.capacity, capacity, &taken).unwrap_or(false)
    }
}
