//! knarr-controllers
