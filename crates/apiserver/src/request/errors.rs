//! The errors of requests that this server does not serve.

use knarr_apimachinery::Error;

/// 404 for a resource that this server does not serve.
pub fn not_served() -> Error {
    with_empty_details(Error::new(
        404,
        "NotFound",
        "the server could not find the requested resource",
    ))
}

/// 405 for a verb that a resource does not support.
pub fn not_allowed() -> Error {
    with_empty_details(Error::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    ))
}

/// The error with `details` that say nothing, as kube-apiserver has them where an error is about no object.
pub(crate) fn with_empty_details(mut error: Error) -> Error {
    error.status_mut().details = Some(Default::default());
    error
}
