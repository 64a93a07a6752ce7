//! The interfaces and addresses of pods: the CNI plugin and its half in the agent (SPEC N1, N8).
