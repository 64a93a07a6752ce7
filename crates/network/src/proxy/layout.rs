//! The sets and maps of a table: names, and the fields of their keys and data.
//!
//! Keys and data are in the kernel's layout: each field padded to 4 bytes; addresses and ports in network byte order,
//! protocols one byte, slots and ids 4 bytes in the host's byte order. "frontend" is `address . protocol . port`.

/// frontend : verdict. What a new connection to a Service's address does.
pub const SERVICES: &str = "services";
/// frontend : verdict. The same for clients from outside, where `externalTrafficPolicy` is `Local`.
pub const LOCAL_SERVICES: &str = "local-services";
/// frontend : verdict. The same for pods and the node itself, where `externalTrafficPolicy` is `Local`.
pub const SHORT_CIRCUIT: &str = "short-circuit";
/// protocol . port : verdict. As [`SERVICES`], for node ports.
pub const NODE_PORTS: &str = "node-ports";
/// protocol . port : verdict. As [`LOCAL_SERVICES`], for node ports.
pub const LOCAL_NODE_PORTS: &str = "local-node-ports";
/// protocol . port : verdict. As [`SHORT_CIRCUIT`], for node ports.
pub const SHORT_CIRCUIT_NODE_PORTS: &str = "short-circuit-node-ports";
/// frontend . slot : address . port.
pub const ENDPOINTS: &str = "endpoints";
/// protocol . port . slot : address . port.
pub const NODE_PORT_ENDPOINTS: &str = "node-port-endpoints";
/// frontend : verdict (reject or drop). Connections to Services without endpoints.
pub const NO_ENDPOINTS: &str = "no-endpoints";
/// protocol . port : verdict.
pub const NO_ENDPOINTS_NODE_PORTS: &str = "no-endpoints-node-ports";
/// address. All cluster IPs; connections to ports that they do not have are rejected.
pub const CLUSTER_IPS: &str = "cluster-ips";
/// frontend : verdict. Frontends that are not cluster IPs, and how their clients are masqueraded.
pub const EXTERNAL: &str = "external";
/// protocol . port : verdict. The same for node ports.
pub const EXTERNAL_NODE_PORTS: &str = "external-node-ports";
/// address . address, twice the same: endpoints of this node, which must not see themselves as client.
pub const HAIRPIN: &str = "hairpin";
/// frontend. Those with `loadBalancerSourceRanges`.
pub const FIREWALLED: &str = "firewalled";
/// frontend . address range. The sources that [`FIREWALLED`] frontends let in. Concatenated intervals: every key has an end.
pub const FIREWALL_SOURCES: &str = "firewall-sources";
/// frontend . id : address . port. Endpoints that a learned id may lead to.
pub const AFFINITY_ENDPOINTS: &str = "affinity-endpoints";
/// protocol . port . id : address . port.
pub const AFFINITY_NODE_PORT_ENDPOINTS: &str = "affinity-node-port-endpoints";
/// frontend . address . port : id. The id of the endpoint that was chosen.
pub const AFFINITY_IDS: &str = "affinity-ids";
/// protocol . port . address . port : id.
pub const AFFINITY_NODE_PORT_IDS: &str = "affinity-node-port-ids";
/// frontend : verdict. The chain that learns with the Service's timeout.
pub const AFFINITY_TIMEOUTS: &str = "affinity-timeouts";
/// protocol . port : verdict.
pub const AFFINITY_NODE_PORT_TIMEOUTS: &str = "affinity-node-port-timeouts";

/// All sets and maps whose elements are decided here.
pub const ALL: [&str; 22] = [
    SERVICES,
    LOCAL_SERVICES,
    SHORT_CIRCUIT,
    NODE_PORTS,
    LOCAL_NODE_PORTS,
    SHORT_CIRCUIT_NODE_PORTS,
    ENDPOINTS,
    NODE_PORT_ENDPOINTS,
    NO_ENDPOINTS,
    NO_ENDPOINTS_NODE_PORTS,
    CLUSTER_IPS,
    EXTERNAL,
    EXTERNAL_NODE_PORTS,
    HAIRPIN,
    FIREWALLED,
    FIREWALL_SOURCES,
    AFFINITY_ENDPOINTS,
    AFFINITY_NODE_PORT_ENDPOINTS,
    AFFINITY_IDS,
    AFFINITY_NODE_PORT_IDS,
    AFFINITY_TIMEOUTS,
    AFFINITY_NODE_PORT_TIMEOUTS,
];

/// The map that the kernel fills: (client, frontend) to the id of its endpoint, with timeouts. Not to be compared or
/// changed.
pub const LEARNED: &str = "affinity";
