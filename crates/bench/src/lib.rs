//! knarr-bench
