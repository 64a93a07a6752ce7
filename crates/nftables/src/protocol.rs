//! The numbers of nfnetlink, nf_tables and ctnetlink (`linux/netfilter/*.h`) that are used here.

/// What packets a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    Ip,
    Ip6,
    Arp,
    Bridge,
    Netdev,
}

impl Family {
    pub(crate) fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ip => 2,
            Family::Arp => 3,
            Family::Netdev => 5,
            Family::Bridge => 7,
            Family::Ip6 => 10,
        }
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Family::Inet,
            2 => Family::Ip,
            3 => Family::Arp,
            5 => Family::Netdev,
            7 => Family::Bridge,
            10 => Family::Ip6,
            _ => return None,
        })
    }

    /// As nft writes it.
    pub fn name(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Flags of netlink headers.
pub(crate) mod flag {
    pub const REQUEST: u16 = 0x1;
    pub const ACK: u16 = 0x4;
    pub const DUMP_INTR: u16 = 0x10;
    pub const ACK_TLVS: u16 = 0x200;
    pub const CAPPED: u16 = 0x100;
    pub const DUMP: u16 = 0x300;
    pub const EXCL: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
}

/// Types of netlink messages: of netlink itself, and of nfnetlink as subsystem and message.
pub(crate) mod message {
    pub const ERROR: u16 = 2;
    pub const DONE: u16 = 3;
    pub const BATCH_BEGIN: u16 = 0x10;
    pub const BATCH_END: u16 = 0x11;

    pub const SUBSYSTEM_NFTABLES: u16 = 10;
    const NFTABLES: u16 = SUBSYSTEM_NFTABLES << 8;
    pub const TABLE: u16 = NFTABLES;
    pub const GET_TABLE: u16 = NFTABLES | 1;
    pub const DELETE_TABLE: u16 = NFTABLES | 2;
    pub const CHAIN: u16 = NFTABLES | 3;
    pub const GET_CHAIN: u16 = NFTABLES | 4;
    pub const SET: u16 = NFTABLES | 9;
    pub const GET_SET: u16 = NFTABLES | 10;
    pub const ELEMENTS: u16 = NFTABLES | 12;
    pub const GET_ELEMENTS: u16 = NFTABLES | 13;
    pub const DELETE_ELEMENTS: u16 = NFTABLES | 14;
    pub const GENERATION: u16 = NFTABLES | 15;
    pub const GET_GENERATION: u16 = NFTABLES | 16;

    const CTNETLINK: u16 = 1 << 8;
    pub const FLOW: u16 = CTNETLINK;
    pub const GET_FLOW: u16 = CTNETLINK | 1;
    pub const DELETE_FLOW: u16 = CTNETLINK | 2;
}

/// Attributes; the prefix names the object.
pub(crate) mod attribute {
    /// Extended acknowledgements: where in the request the fault is.
    pub const ACK_OFFSET: u16 = 2;

    pub const TABLE_NAME: u16 = 1;

    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;

    pub const SET_TABLE: u16 = 1;
    pub const SET_NAME: u16 = 2;
    pub const SET_FLAGS: u16 = 3;
    pub const SET_KEY_LENGTH: u16 = 5;
    pub const SET_DATA_TYPE: u16 = 6;
    pub const SET_DATA_LENGTH: u16 = 7;

    pub const ELEMENTS_TABLE: u16 = 1;
    pub const ELEMENTS_SET: u16 = 2;
    pub const ELEMENTS_LIST: u16 = 3;
    pub const LIST_ELEMENT: u16 = 1;

    pub const ELEMENT_KEY: u16 = 1;
    pub const ELEMENT_DATA: u16 = 2;
    pub const ELEMENT_FLAGS: u16 = 3;
    pub const ELEMENT_TIMEOUT: u16 = 4;
    pub const ELEMENT_KEY_END: u16 = 10;

    pub const DATA_VALUE: u16 = 1;
    pub const DATA_VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;

    pub const GENERATION_ID: u16 = 1;

    pub const FLOW_ORIGINAL: u16 = 1;
    pub const FLOW_REPLY: u16 = 2;
    pub const FLOW_ID: u16 = 12;
    pub const FLOW_ZONE: u16 = 18;
    pub const FLOW_FILTER: u16 = 25;
    pub const TUPLE_ADDRESSES: u16 = 1;
    pub const TUPLE_PROTOCOL: u16 = 2;
    pub const ADDRESS_SOURCE_V4: u16 = 1;
    pub const ADDRESS_DESTINATION_V4: u16 = 2;
    pub const ADDRESS_SOURCE_V6: u16 = 3;
    pub const ADDRESS_DESTINATION_V6: u16 = 4;
    pub const PROTOCOL_NUMBER: u16 = 1;
    pub const PROTOCOL_SOURCE_PORT: u16 = 2;
    pub const PROTOCOL_DESTINATION_PORT: u16 = 3;
    pub const FILTER_ORIGINAL: u16 = 1;
    pub const FILTER_REPLY: u16 = 2;
}

/// Flags of sets.
pub(crate) mod set_flag {
    pub const INTERVAL: u32 = 0x4;
    pub const MAP: u32 = 0x8;
    pub const OBJECT: u32 = 0x40;
    pub const CONCAT: u32 = 0x80;
}

/// Data type of verdict maps.
pub(crate) const DATA_IS_VERDICT: u32 = 0xffff_ff00;

/// Flags of elements.
pub(crate) mod element_flag {
    pub const INTERVAL_END: u32 = 1;
    pub const CATCH_ALL: u32 = 2;
}

/// Verdicts as the kernel numbers them.
pub(crate) mod verdict {
    pub const DROP: i32 = 0;
    pub const ACCEPT: i32 = 1;
    pub const CONTINUE: i32 = -1;
    pub const JUMP: i32 = -3;
    pub const GOTO: i32 = -4;
    pub const RETURN: i32 = -5;
}

/// Which fields of a flow's original direction a filtered dump compares.
pub(crate) const FILTER_PROTOCOL: u32 = 1 << 3;
