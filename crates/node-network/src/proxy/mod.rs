//! The service proxy: keeps nftables maps equal to Services and their endpoints (SPEC N2, N3, N4).
