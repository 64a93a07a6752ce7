//! knarr-node
