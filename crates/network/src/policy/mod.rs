//! Which connections NetworkPolicies allow, and the nftables elements that enforce it (SPEC N6).
