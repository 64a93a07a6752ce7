//! What hostile pods, nodes and tenants try against a real cluster.

pub mod identities;
pub mod authorities;
pub mod certificates;
mod openssl;
pub mod bounds;
