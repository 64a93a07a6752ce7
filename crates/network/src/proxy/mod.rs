//! Which endpoints a connection to a Service leads to, and the nftables elements that say so (SPEC N2, N3, N4).
