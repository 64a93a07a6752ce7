//! knarr-scheduler
