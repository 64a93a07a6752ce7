//! Keeps the rules of NetworkPolicies in the kernel (SPEC N6).
