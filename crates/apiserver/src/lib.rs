//! knarr-apiserver
