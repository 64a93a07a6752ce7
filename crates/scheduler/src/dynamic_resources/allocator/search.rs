//! The search: devices are taken one after the other for the claims and their requests in order, and released again
//! when there is no solution with them (backtracking).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::Quantity;

use super::constraint::Constraint;
use super::request::{Matcher, Request, Variant};
use super::{AllocationError, Candidate, Counters, RESULTS_MAX, STEPS_MAX, claim_name, taints_prevent};
use crate::dynamic_resources::capacity::consumption;
use crate::dynamic_resources::pools::{Pool, PoolState, devices};
use crate::dynamic_resources::{Consumed, DeviceId};

/// A device of the solution.
#[derive(Debug)]
pub(super) struct TakenDevice<'a> {
    pub request: usize,
    pub variant: usize,
    pub candidate: Candidate<'a>,
    /// The consumed capacity of a device that can be allocated several times; `None`: the device is allocated
    /// exclusively.
    pub consumed: Option<Consumed>,
    /// Whether this entry counts against the counters of the device.
    counted: bool,
}

/// The position of the search.
#[derive(Clone, Copy, Debug, Default)]
struct SearchPosition {
    claim: usize,
    request: usize,
    variant: usize,
    /// How many devices of the request are taken already.
    devices: usize,
}

/// Where the devices begin that have not been tried for a request.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceOffset {
    pool: usize,
    slice: usize,
    device: usize,
}

/// The result of a part of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchResult {
    Yes,
    No,
    /// The claim would have too many devices: another alternative may need fewer.
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
    pub taken: Vec<Vec<TakenDevice<'a>>>,
    /// Devices that claims of the solution use exclusively.
    users: BTreeMap<Key<'a>, BTreeSet<usize>>,
    /// Devices of the solution that can be allocated several times: how many shares, and the sum of what they
    /// consume.
    shared: BTreeMap<Key<'a>, (usize, Consumed)>,
    /// By pool: what existing allocations leave of its counters; computed at the first use.
    available: BTreeMap<usize, Counters<'a>>,
    /// By pool: what the solution consumes of them.
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
        Ok(self.request(SearchPosition::default())? == SearchResult::Yes)
    }

    /// Allocates a request from its beginning.
    fn request(&mut self, at: SearchPosition) -> Result<SearchResult, AllocationError> {
        let Some(requests) = self.requests.get(at.claim) else {
            return Ok(SearchResult::Yes);
        };
        let Some(request) = requests.get(at.request) else {
            let next = SearchPosition {
                claim: at.claim + 1,
                ..SearchPosition::default()
            };
            // Too many devices of a later claim do not count against this one.
            return Ok(match self.request(next)? {
                SearchResult::TooMany => SearchResult::No,
                found => found,
            });
        };
        if !request.is_prioritized_list {
            return self.devices(at, DeviceOffset::default());
        }
        let mut all_too_many = true;
        for variant in 0..request.variants.len() {
            match self.devices(SearchPosition { variant, ..at }, DeviceOffset::default())? {
                SearchResult::Yes => {
                    self.requests[at.claim][at.request].chosen = variant;
                    return Ok(SearchResult::Yes);
                }
                SearchResult::TooMany => {}
                SearchResult::No => all_too_many = false,
            }
        }
        Ok(if all_too_many {
            SearchResult::TooMany
        } else {
            SearchResult::No
        })
    }

    fn variant(&self, at: SearchPosition) -> &Variant<'a> {
        &self.requests[at.claim][at.request].variants[at.variant]
    }

    /// Allocates the remaining devices of a request, and everything after it.
    fn devices(&mut self, at: SearchPosition, start: DeviceOffset) -> Result<SearchResult, AllocationError> {
        let variant = self.variant(at);
        let wanted = variant.devices;
        if variant.all.as_ref().is_some_and(Vec::is_empty) {
            return Ok(SearchResult::No);
        }
        if at.devices >= wanted {
            let next = SearchPosition {
                claim: at.claim,
                request: at.request + 1,
                ..SearchPosition::default()
            };
            return self.request(next);
        }
        if self.taken[at.claim].len() + wanted - at.devices > RESULTS_MAX {
            return Ok(SearchResult::TooMany);
        }
        let next = SearchPosition {
            devices: at.devices + 1,
            ..at
        };
        if let Some(all) = &variant.all {
            let candidate = all[at.devices];
            self.step()?;
            if !self.take(at, candidate, true)? {
                return Ok(SearchResult::No);
            }
            let found = self.devices(next, DeviceOffset::default())?;
            if found != SearchResult::Yes {
                self.release(at);
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
                    let rest = DeviceOffset {
                        pool: p,
                        slice: s,
                        device: d + 1,
                    };
                    match self.devices(next, rest)? {
                        SearchResult::Yes => return Ok(SearchResult::Yes),
                        SearchResult::TooMany => {
                            self.release(at);
                            return Ok(SearchResult::TooMany);
                        }
                        SearchResult::No => self.release(at),
                    }
                }
            }
        }
        Ok(SearchResult::No)
    }

    fn step(&mut self) -> Result<(), AllocationError> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(AllocationError::TimedOut(self.matcher.node.name.clone()));
        }
        Ok(())
    }

    /// Whether the device is free and matches the request.
    fn is_usable(&mut self, at: SearchPosition, candidate: &Candidate<'a>) -> Result<bool, AllocationError> {
        if !self.is_free(at, candidate) {
            return Ok(false);
        }
        let variant = &self.requests[at.claim][at.request].variants[at.variant];
        let claim = self.claims[at.claim];
        self.matcher.selects(variant, claim, candidate)
    }

    fn is_free(&self, at: SearchPosition, candidate: &Candidate<'a>) -> bool {
        let users = self.users.get(&key(candidate));
        if self.variant(at).admin_access {
            // Admin access does not need the device to be free, but each claim gets it once.
            return users.is_none_or(|u| !u.contains(&at.claim));
        }
        users.is_none_or(BTreeSet::is_empty) && !self.matcher.allocated.devices.contains(&candidate.id())
    }

    /// Takes the device if the constraints and counters allow it. `must`: the request needs all devices, so a
    /// constraint that rejects one of them is an error.
    fn take(
        &mut self,
        at: SearchPosition,
        candidate: Candidate<'a>,
        must: bool,
    ) -> Result<bool, AllocationError> {
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
            // It was compared above, so it parses.
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
        self.taken[at.claim].push(TakenDevice {
            request: at.request,
            variant: at.variant,
            candidate,
            consumed,
            counted: counts,
        });
        Ok(true)
    }

    /// Releases the device that was taken last for the claim.
    fn release(&mut self, at: SearchPosition) {
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

    /// Consumes the pool's counters for the device, if enough is left.
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
        // All counters of the pool, as in kube-scheduler: an overdrawn counter elsewhere rejects the device, too.
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
