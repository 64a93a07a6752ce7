//! nftables over netlink: transactions of set elements, dumps of one table, and conntrack entries deleted.
//!
//! Rules and chains are few and fixed; their text is `nft`'s business. What changes all the time are elements of sets and
//! maps, and those are encoded here directly (nfnetlink, `NFT_MSG_NEWSETELEM` and its kin).
