//! What the authorizer is asked for every kind, subresource and way of reading and writing (SPEC A2), over HTTPS.
//!
//! The rows come from discovery, so that a kind that is added is asked about, too. Each row names the permissions that
//! kube-apiserver asks for; the test asks for exactly those, is denied without any one of them, and gets through with
//! those alone.

mod acting;
mod authorizer;
mod creates;
mod nodes;
mod paths;
mod reviews;
mod rows;
mod walk;
