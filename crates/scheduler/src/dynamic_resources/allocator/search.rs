//! The search: one device after the other is taken for the claims and their requests in order, and given back when the
//! rest cannot be had with it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::k8s_openapi;
use knarr_api::quantity::Quantity;

use super::constraint::Constraint;
use super::request::{Matcher, Request, Variant};
use super::{AllocationError, Candidate, Counters, RESULTS_MAX, STEPS_MAX, claim_name, taints_prevent};
use crate::dynamic_resources::capacity::consumption;
use crate::dynamic_resources::pools::{Pool, PoolState, devices};
use crate::dynamic_resources::{Consumed, DeviceId};

/// A device of the solution.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    pub request: usize,
    pub variant: usize,
    pub candidate: Candidate<'a>,
    /// What it consumes of a device that can be allocated several times; `None`: it has the device for itself.
    pub consumed: Option<Consumed>,
    /// Whether the counters of the device are counted for this one.
    counted: bool,
}

/// How far the search has come.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    claim: usize,
    request: usize,
    variant: usize,
    /// Devices of the request that are taken already.
    devices: usize,
}

/// Where the devices begin that were not yet looked at for a request.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    pool: usize,
    slice: usize,
    device: usize,
}

/// What a part of the search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Yes,
    No,
    /// The claim would have too many devices: another alternative may have fewer.
    TooMany,
}

type Key<'a> = (usize, &'a str);

/// See the module.
pub(super) struct Search<'a, 'p> {
    pub claims: &'p [&'a ResourceClaim],
    pub pools: &'p [Pool<'a>],
    pub requests: Vec<Vec<Request<'a>>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    matcher: Matcher<'a>,
    /// By claim.
    pub taken: Vec<Vec<Taken<'a>>>,
    /// Devices that claims of the solution have for themselves.
    users: BTreeMap<Key<'a>, BTreeSet<usize>>,
    /// Devices of the solution that can be allocated several times: what each share consumes, summed.
    shared: BTreeMap<Key<'a>, (usize, Consumed)>,
    /// By pool: what is left of its counters beside existing allocations; worked out when it is asked for.
    available: BTreeMap<usize, Counters<'a>>,
    /// By pool: what the solution takes of them.
    counted: BTreeMap<usize, Counters<'a>>,
    steps: usize,
}

impl<'a, 'p> Search<'a, 'p> {
    pub(super) fn new(
        claims: &'p [&'a ResourceClaim],
        pools: &'p [Pool<'a>],
        requests: Vec<Vec<Request<'a>>>,
        constraints: Vec<Vec<Constraint<'a>>>,
        matcher: Matcher<'a>,
    ) -> Self {
        Search {
            taken: claims.iter().map(|_| Vec::new()).collect(),
            claims,
            pools,
            requests,
            constraints,
            matcher,
            users: BTreeMap::new(),
            shared: BTreeMap::new(),
            available: BTreeMap::new(),
            counted: BTreeMap::new(),
            steps: 0,
        }
    }

    /// Whether there is a solution; then it is in `taken`.
    pub(super) fn run(&mut self) -> Result<bool, AllocationError> {
        Ok(self.request(At::default())? == Found::Yes)
    }

    /// A request from its beginning.
    fn request(&mut self, at: At) -> Result<Found, AllocationError> {
        let Some(requests) = self.requests.get(at.claim) else {
            return Ok(Found::Yes);
        };
        let Some(request) = requests.get(at.request) else {
            let next = At {
                claim: at.claim + 1,
                ..At::default()
            };
            // Too many devices of a later claim say nothing about this one.
            return Ok(match self.request(next)? {
                Found::TooMany => Found::No,
                found => found,
            });
        };
        if !request.is_prioritized_list {
            return self.devices(at, Start::default());
        }
        let mut all_too_many = true;
        for variant in 0..request.variants.len() {
            match self.devices(At { variant, ..at }, Start::default())? {
                Found::Yes => {
                    self.requests[at.claim][at.request].chosen = variant;
                    return Ok(Found::Yes);
                }
                Found::TooMany => {}
                Found::No => all_too_many = false,
            }
        }
        Ok(if all_too_many { Found::TooMany } else { Found::No })
    }

    fn variant(&self, at: At) -> &Variant<'a> {
        &self.requests[at.claim][at.request].variants[at.variant]
    }

    /// The rest of the devices of a request, and everything after it.
    fn devices(&mut self, at: At, start: Start) -> Result<Found, AllocationError> {
        let variant = self.variant(at);
        let wanted = variant.devices;
        if variant.all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(Found::No);
        }
        if at.devices >= wanted {
            let next = At {
                claim: at.claim,
                request: at.request + 1,
                ..At::default()
            };
            return self.request(next);
        }
        if self.taken[at.claim].len() + wanted - at.devices > RESULTS_MAX {
            return Ok(Found::TooMany);
        }
        let next = At {
            devices: at.devices + 1,
            ..at
        };
        if let Some(all) = &variant.all {
            let candidate = all[at.devices];
            self.step()?;
            if !self.take(at, candidate, true)? {
                return Ok(Found::No);
            }
            let found = self.devices(next, Start::default())?;
            if found != Found::Yes {
                self.give_back(at);
            }
            return Ok(found);
        }
        let pools = self.pools;
        for (p, pool) in pools.iter().enumerate().skip(start.pool) {
            if pool.state != PoolState::Complete {
                continue;
            }
            let first = if p == start.pool { start.slice } else { 0 };
            for (s, slice) in pool.slices.iter().enumerate().skip(first) {
                let continues = p == start.pool && s == start.slice;
                let first = if continues { start.device } else { 0 };
                for (d, device) in devices(slice).iter().enumerate().skip(first) {
                    let candidate = Candidate {
                        pool: p,
                        slice,
                        device,
                    };
                    self.step()?;
                    if !self.is_usable(at, &candidate)? || !self.take(at, candidate, false)? {
                        continue;
                    }
                    let rest = Start {
                        pool: p,
                        slice: s,
                        device: d + 1,
                    };
                    match self.devices(next, rest)? {
                        Found::Yes => return Ok(Found::Yes),
                        Found::TooMany => {
                            self.give_back(at);
                            return Ok(Found::TooMany);
                        }
                        Found::No => self.give_back(at),
                    }
                }
            }
        }
        Ok(Found::No)
    }

    fn step(&mut self) -> Result<(), AllocationError> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(AllocationError::TimedOut(self.matcher.node.name.clone()));
        }
        Ok(())
    }

    /// Whether the device is free and what the request asks for.
    fn is_usable(&mut self, at: At, candidate: &Candidate<'a>) -> Result<bool, AllocationError> {
        if !self.is_free(at, candidate) {
            return Ok(false);
        }
        let variant = &self.requests[at.claim][at.request].variants[at.variant];
        let claim = self.claims[at.claim];
        self.matcher.selects(variant, claim, candidate)
    }

    fn is_free(&self, at: At, candidate: &Candidate<'a>) -> bool {
        let users = self.users.get(&key(candidate));
        if self.variant(at).admin_access {
            // Beside whoever uses it, but once per claim.
            return users.is_none_or(|u| !u.contains(&at.claim));
        }
        users.is_none_or(BTreeSet::is_empty) && !self.matcher.allocated.devices.contains(&candidate.id())
    }

    /// Takes the device if nothing is against it. `must`: the request asks for all devices, so that a constraint
    /// against one of them is an error.
    fn take(&mut self, at: At, candidate: Candidate<'a>, must: bool) -> Result<bool, AllocationError> {
        let variant = &self.requests[at.claim][at.request].variants[at.variant];
        let key = key(&candidate);
        let shared = self.shared.get(&key).map(|(_, consumed)| consumed);
        if !self.is_free(at, &candidate)
            || !self.matcher.has_room(variant, &candidate, shared)
            || taints_prevent(candidate.device, variant.tolerations)
        {
            return Ok(false);
        }
        let is_shared = candidate.allows_multiple_allocations();
        let in_use = shared.is_some() || self.matcher.allocated.shared.contains_key(&candidate.id());
        // The first share counts for all of them.
        let counts = candidate.device.consumes_counters.is_some() && !(is_shared && in_use);
        if counts && !self.count(&candidate) {
            return Ok(false);
        }
        let variant = &self.requests[at.claim][at.request].variants[at.variant];
        let constraints = &mut self.constraints[at.claim];
        if let Some(against) = constraints.iter_mut().position(|c| !c.add(variant, &candidate)) {
            for constraint in &mut constraints[..against] {
                constraint.remove(variant);
            }
            if counts {
                uncount(&mut self.counted, &candidate);
            }
            if must {
                let device = candidate.id();
                return Err(AllocationError::Request {
                    claim: claim_name(self.claims[at.claim]),
                    request: variant.name.rsplit('/').next().unwrap_or_default().to_string(),
                    problem: format!(
                        "cannot add device {device} because a claim constraint would not be satisfied"
                    ),
                });
            }
            return Ok(false);
        }
        let mut consumed = None;
        if is_shared {
            // It was compared above, so it can be read.
            let amounts =
                consumption(variant.capacity, candidate.device.capacity.as_ref()).unwrap_or_default();
            let (count, sums) = self.shared.entry(key).or_default();
            *count += 1;
            for (name, amount) in &amounts {
                let sum = sums.entry(name.clone()).or_default();
                *sum += *amount;
            }
            consumed = Some(amounts);
        } else {
            self.users.entry(key).or_default().insert(at.claim);
        }
        self.taken[at.claim].push(Taken {
            request: at.request,
            variant: at.variant,
            candidate,
            consumed,
            counted: counts,
        });
        Ok(true)
    }

    /// Gives the device back that was taken last for the claim.
    fn give_back(&mut self, at: At) {
        let Some(taken) = self.taken[at.claim].pop() else {
            return;
        };
        let variant = &self.requests[at.claim][taken.request].variants[taken.variant];
        for constraint in &mut self.constraints[at.claim] {
            constraint.remove(variant);
        }
        let key = key(&taken.candidate);
        match taken.consumed {
            Some(amounts) => {
                if let Some((count, sums)) = self.shared.get_mut(&key) {
                    *count = count.saturating_sub(1);
                    for (name, amount) in amounts {
                        if let Some(sum) = sums.get_mut(&name) {
                            *sum -= amount;
                        }
                    }
                    if *count == 0 {
                        self.shared.remove(&key);
                    }
                }
            }
            None => {
                if let Some(users) = self.users.get_mut(&key) {
                    users.remove(&at.claim);
                }
            }
        }
        if taken.counted {
            uncount(&mut self.counted, &taken.candidate);
        }
    }

    /// Takes what the device consumes of its pool's counters, if that is left.
    fn count(&mut self, candidate: &Candidate<'a>) -> bool {
        let pool = &self.pools[candidate.pool];
        let allocated = self.matcher.allocated;
        let available = self.available.entry(candidate.pool).or_insert_with(|| {
            let mut left: Counters<'a> = BTreeMap::new();
            for (set, of) in &pool.counters {
                for (name, counter) in &of.counters {
                    let value = Quantity::of(&counter.value).unwrap_or_default();
                    left.insert((*set, name.as_str()), value);
                }
            }
            for slice in pool.slices.iter().chain(&pool.elsewhere) {
                for device in devices(slice) {
                    if device.consumes_counters.is_none()
                        || !allocated.is_allocated(&DeviceId::new(pool.driver, pool.name, &device.name))
                    {
                        continue;
                    }
                    for (key, value) in consumes(device) {
                        if let Some(left) = left.get_mut(&key) {
                            *left -= value;
                        }
                    }
                }
            }
            left
        });
        let counted = self.counted.entry(candidate.pool).or_default();
        for (key, value) in consumes(candidate.device) {
            let sum = counted.entry(key).or_default();
            *sum += value;
        }
        let zero = Quantity::default();
        // All of the pool's counters, as kube-scheduler does: what is overdrawn elsewhere is against it, too.
        let enough = available
            .iter()
            .all(|(key, left)| left >= counted.get(key).unwrap_or(&zero));
        if !enough {
            uncount(&mut self.counted, candidate);
        }
        enough
    }
}

fn key<'a>(candidate: &Candidate<'a>) -> Key<'a> {
    (candidate.pool, candidate.device.name.as_str())
}

type Consumption<'a> = ((&'a str, &'a str), Quantity);

fn consumes(device: &k8s_openapi::api::resource::v1::Device) -> impl Iterator<Item = Consumption<'_>> {
    let all = device.consumes_counters.iter().flatten();
    all.flat_map(|of| {
        of.counters.iter().map(|(name, counter)| {
            let value = Quantity::of(&counter.value).unwrap_or_default();
            ((of.counter_set.as_str(), name.as_str()), value)
        })
    })
}

fn uncount<'a>(counted: &mut BTreeMap<usize, Counters<'a>>, candidate: &Candidate<'a>) {
    let Some(counted) = counted.get_mut(&candidate.pool) else {
        return;
    };
    for (key, value) in consumes(candidate.device) {
        if let Some(sum) = counted.get_mut(&key) {
            *sum -= value;
        }
    }
}
