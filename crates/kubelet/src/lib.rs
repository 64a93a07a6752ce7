//! knarr-kubelet
