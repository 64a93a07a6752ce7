//! How the pods of other nodes are reached: a plain route, VXLAN or WireGuard for each node (SPEC N7).
