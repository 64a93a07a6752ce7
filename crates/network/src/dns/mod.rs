//! What cluster DNS answers: Kubernetes' DNS-based service discovery, version 1.1 (SPEC N5).
