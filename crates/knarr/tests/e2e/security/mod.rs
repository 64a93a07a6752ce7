//! What hostile pods, nodes and tenants try against a real cluster.

pub mod identities;
