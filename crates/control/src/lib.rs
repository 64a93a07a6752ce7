//! knarr-control
