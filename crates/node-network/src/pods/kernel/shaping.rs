//! Token bucket filters, and what a pod sends led to a device that has one.
//!
//! As the reference plugin `bandwidth` does it: what a pod receives leaves the host's side of its link through a token
//! bucket; what it sends arrives at that side and is led to the egress of an `ifb` device of the pod's own.

use knarr_cni::kernel::netlink::{Error, Netlink, Request};
use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionGeneric, TcActionMirror, TcActionMirrorOption, TcActionOption,
    TcActionType, TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcMessage, TcMirror,
    TcMirrorActionType, TcOption, TcU32Key, TcU32Selector, TcU32SelectorFlags,
};

/// How long a packet may wait before it is dropped, as in the reference plugin.
const LATENCY_MILLISECONDS: u64 = 25;
/// A burst must hold the largest packet that the link passes on as one.
const MIN_BURST_BYTES: u64 = 64 << 10;

const TBF_PARAMETERS: u16 = 1;
const TBF_RATE_64: u16 = 4;
const TBF_BURST: u16 = 6;
const LINK_LAYER_ETHERNET: u8 = 1;
/// `ETH_P_ALL`, in network byte order, with priority 1.
const ALL_PROTOCOLS: u32 = (1 << 16) | (0x0003_u16.to_be() as u32);

/// A rate and how much may come at once above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub bytes_per_second: u64,
    pub burst_bytes: u32,
}

impl Limit {
    /// From bits, as the runtime gives them; `None` without a rate.
    ///
    /// A pod's annotations have no burst, and containerd then passes 2³²−1 bits: half a GiB before there is any limit.
    /// A burst of that size counts as unset, and is then a tenth of a second's worth.
    pub fn from_bits(rate: u64, burst: u64) -> Option<Self> {
        let bytes_per_second = rate / 8;
        if bytes_per_second == 0 {
            return None;
        }
        let burst_bytes = match burst {
            0 => bytes_per_second / 10,
            given if given >= u64::from(u32::MAX >> 1) => bytes_per_second / 10,
            given => given / 8,
        };
        Some(Limit {
            bytes_per_second,
            burst_bytes: u32::try_from(burst_bytes.max(MIN_BURST_BYTES)).unwrap_or(u32::MAX),
        })
    }
}

/// Lets the interface send no faster.
pub fn limit_egress(netlink: &mut Netlink, index: u32, limit: Limit) -> Result<(), Error> {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message.header.handle = TcHandle { major: 1, minor: 0 };
    message.attributes = vec![
        TcAttribute::Kind("tbf".into()),
        TcAttribute::Options(
            [
                (TBF_PARAMETERS, parameters(limit)),
                (TBF_RATE_64, limit.bytes_per_second.to_ne_bytes().to_vec()),
                (TBF_BURST, limit.burst_bytes.to_ne_bytes().to_vec()),
            ]
            .map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value)))
            .to_vec(),
        ),
    ];
    netlink.one(
        "limit the bandwidth",
        RouteNetlinkMessage::NewQueueDiscipline(message),
        NLM_F_CREATE | NLM_F_REPLACE,
    )
}

/// `struct tc_tbf_qopt`.
fn parameters(limit: Limit) -> Vec<u8> {
    let waiting = limit.bytes_per_second / 1000 * LATENCY_MILLISECONDS;
    let queue = waiting.saturating_add(u64::from(limit.burst_bytes));
    let queue = u32::try_from(queue).unwrap_or(u32::MAX);
    let rate = u32::try_from(limit.bytes_per_second).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate.
    bytes.extend_from_slice(&[0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&rate.to_ne_bytes());
    // No peak rate.
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(&queue.to_ne_bytes());
    // The bucket, which TBF_BURST gives in bytes, and the mtu of a peak rate.
    bytes.extend_from_slice(&[0; 8]);
    bytes
}

/// Leads all that arrives at the interface through the egress of another one and back.
pub fn redirect_ingress(netlink: &mut Netlink, index: u32, to: u32) -> Result<(), Error> {
    let mut ingress = TcMessage::with_index(index.cast_signed());
    ingress.header.parent = TcHandle::INGRESS;
    ingress.header.handle = TcHandle {
        major: 0xffff,
        minor: 0,
    };
    ingress.attributes = vec![TcAttribute::Kind("ingress".into())];

    let mut generic = TcActionGeneric::default();
    generic.action = TcActionType::Stolen;
    let mut mirror = TcMirror::default();
    mirror.generic = generic;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = to;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.into()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    let mut filter = TcMessage::with_index(index.cast_signed());
    filter.header.parent = TcHandle {
        major: 0xffff,
        minor: 0,
    };
    filter.header.info = ALL_PROTOCOLS;
    // A key of zeros matches everything. The classifier `matchall` is not in every kernel.
    let mut everything = TcU32Selector::default();
    everything.flags = TcU32SelectorFlags::Terminal;
    everything.nkeys = 1;
    everything.keys = vec![TcU32Key::default()];
    filter.attributes = vec![
        TcAttribute::Kind(TcFilterU32::KIND.into()),
        TcAttribute::Options(vec![
            TcOption::U32(TcFilterU32Option::Selector(everything)),
            TcOption::U32(TcFilterU32Option::Action(vec![action])),
        ]),
    ];
    netlink.execute(vec![
        Request {
            operation: "add the ingress discipline",
            message: RouteNetlinkMessage::NewQueueDiscipline(ingress),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        },
        Request {
            operation: "redirect what the pod sends",
            message: RouteNetlinkMessage::NewTrafficFilter(filter),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n8_an_unset_burst_is_a_tenth_of_a_second() {
        assert_eq!(Limit::from_bits(0, 5), None);
        let limit = Limit::from_bits(80_000_000, u64::from(u32::MAX)).unwrap();
        assert_eq!(
            (limit.bytes_per_second, limit.burst_bytes),
            (10_000_000, 1_000_000)
        );
        assert_eq!(
            Limit::from_bits(80_000_000, 8_000_000).unwrap().burst_bytes,
            1_000_000
        );
        assert_eq!(
            Limit::from_bits(1_000_000, 8).unwrap().burst_bytes,
            64 << 10,
            "a packet must fit"
        );
    }
}
