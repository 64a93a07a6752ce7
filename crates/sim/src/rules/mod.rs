//! What must hold after every step, one file per number of the specification. A rule sees what has happened and the
//! world after it, and describes how it does not hold.

mod announced;
mod b3_domains;
mod b3_rebalancing;
mod b3_scale_down;
mod b3_skew;
pub(crate) mod b4_self_fencing;
pub(crate) mod b5_cross_node;
mod b6_hard_budgets;
mod b6_surge_first;
pub(crate) mod b7_endpoints;
pub(crate) mod custom;
mod l1_phases;
mod l2_one_life;
pub(crate) mod n1_addresses;
pub(crate) mod n3_at_rest;
mod n4_ends;
pub(crate) mod n5_names;
pub(crate) mod n6_policy;
mod p4_preemption;
mod p5_budgets;
pub(crate) mod placed;
pub(crate) mod quota;
mod s1_at_most_one;
mod s1_leaders_term;
mod s2_who_may_remove;
mod s3_order;
mod s5_released;
mod s6_fenced;
mod s7_one_holder;
pub(crate) mod s7_staging;
mod s8_one_a_node;
mod s9_at_rest;
mod s9_bounded;
pub(crate) mod s9_watches;
mod t1_deletion;
mod t2_ending;
mod t3_grace;
mod t5_last_step;
#[cfg(test)]
mod tests;

use crate::finding::Finding;
use crate::world::{Observation, World};

pub(crate) type Rule = fn(&Observation<'_>, &World) -> Result<(), Finding>;

/// With their numbers in the specification.
pub(crate) const ALL: [(&str, Rule); 35] = [
    ("L1", l1_phases::check),
    ("L2", l2_one_life::check),
    ("T1", t1_deletion::check),
    ("T2", t2_ending::check),
    ("T3", t3_grace::check),
    ("T5", t5_last_step::check),
    ("S1", s1_at_most_one::check),
    ("S1", s1_leaders_term::check),
    ("S2", s2_who_may_remove::check),
    ("S3", s3_order::check),
    ("S5", s5_released::check),
    ("S6", s6_fenced::check),
    ("S7", s7_one_holder::check),
    ("S7", s7_staging::check),
    ("S8", s8_one_a_node::check),
    ("S9", s9_at_rest::check),
    ("S9", s9_bounded::check),
    ("B3", b3_domains::check),
    ("B3", b3_rebalancing::check),
    ("B3", b3_scale_down::check),
    ("B3", b3_skew::check),
    ("B4", b4_self_fencing::check),
    ("B5", b5_cross_node::check),
    ("B6", b6_hard_budgets::check),
    ("B6", b6_surge_first::check),
    ("B7", b7_endpoints::check),
    ("N1", n1_addresses::check),
    ("N4", n4_ends::check),
    ("N5", n5_names::check),
    ("N6", n6_policy::check),
    ("P4", p4_preemption::check),
    ("P5", p5_budgets::check),
    ("quota", quota::check),
    ("custom", custom::check),
    ("announced", announced::check),
];
