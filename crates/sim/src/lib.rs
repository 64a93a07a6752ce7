//! knarr-sim
