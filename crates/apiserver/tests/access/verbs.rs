//! The authorization of every kind, subresource and verb (SPEC A2), over HTTPS.
//!
//! The rows come from discovery, so that a new kind is tested, too. Each row names the permissions that kube-apiserver requires; the test grants
//! exactly those, is denied without any one of them, and succeeds with those alone.

mod acting;
mod authorizer;
mod creates;
mod nodes;
mod paths;
mod reviews;
mod rows;
mod walk;
