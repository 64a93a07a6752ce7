//! Attacks of hostile pods, nodes and tenants on a real cluster.

pub mod at_rest;
pub mod authorities;
pub mod bounds;
pub mod certificates;
pub mod files;
pub mod identities;
mod openssl;
pub mod stalled_disk;
